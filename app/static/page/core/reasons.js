// Why the label of a face may be wrong, in words. The reasons are those of data/quality.py.

import { facts, ranked } from "./labels.js";

const HINTS = {
  small: ["Move closer", ({ box }) => `the face is too small, ${Math.round(Math.min(box.width, box.height))} pixels wide`],
  blurred: ["Hold still", () => "the face is blurred"],
  turned: ["Look at the camera", () => "the head is turned away"],
  dark: ["Turn on a light", () => "the face is dark"],
  covered: ["Uncover the face", () => "eyes or mouth seem to be covered"],
  ambiguous: ["Between two labels", ({ probabilities }) => `it may also be ${ranked(probabilities)[1]}`],
};

/** One line about the first reason: what is wrong, and with `advice` what the person can do; empty without a reason. */
export function hintOf(face, { advice }) {
  const [what, why] = HINTS[face.reasons?.[0]] ?? [];
  if (!why) return "";
  return advice ? `${what}: ${why(face)}` : `${why(face)[0].toUpperCase()}${why(face).slice(1)}`;
}

/** The reasons of a face with other probabilities, such as smoothed ones. */
export function withProbabilities(reasons, probabilities) {
  const [first, second] = ranked(probabilities).map((label) => probabilities[label]);
  const others = reasons.filter((reason) => reason !== "ambiguous");
  return first < facts.quality.ambiguous_below * second ? [...others, "ambiguous"] : others;
}
