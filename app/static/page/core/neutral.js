// Correction for a face that looks sad or angry at rest: the weakest one that makes the resting face neutral.
//
// With r, the resting probabilities (geometric mean of two seconds of frames), and t, a clear neutral face:
// p'(k) is proportional to p(k) * (t(k) / r(k)) ** a. The strength a is the smallest in 0 to 1 that gives r' a neutral
// share of at least GOAL; a = 1 makes r' equal to t, and a face that is neutral at rest is not changed.

import { LABELS } from "./labels.js";

export const CAPTURE_MS = 2000;
const GOAL = 0.6;
const OTHERS = 0.02; // of t: the share of each expression but neutral
const LEAST = 0.001;
const STEPS = 20;

/** The factors by which a person's probabilities are multiplied. `frames`: probabilities of the resting face. */
export function correctionOf(frames) {
  const resting = Object.fromEntries(LABELS.map((label) =>
    [label, Math.exp(frames.reduce((sum, frame) => sum + Math.log(Math.max(frame[label], LEAST)), 0) / frames.length)]));
  const neutral = 1 - OTHERS * (LABELS.length - 1);
  const factors = (strength) => Object.fromEntries(LABELS.map((label) =>
    [label, ((label === "neutral" ? neutral : OTHERS) / resting[label]) ** strength]));
  let [low, high] = [0, 1];
  if (corrected(resting, factors(0)).neutral >= GOAL) high = 0;
  for (let step = 0; step < STEPS; step++) {
    const middle = (low + high) / 2;
    if (corrected(resting, factors(middle)).neutral >= GOAL) high = middle;
    else low = middle;
  }
  return factors(high);
}

/** Probabilities after a correction. */
export function corrected(probabilities, factors) {
  const sum = LABELS.reduce((total, label) => total + probabilities[label] * factors[label], 0);
  return Object.fromEntries(LABELS.map((label) => [label, (probabilities[label] * factors[label]) / sum]));
}
