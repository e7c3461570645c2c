// What one person showed over time: points of label and probabilities, and the seconds of each label.

import { UNCERTAIN } from "./labels.js";

export const SPAN_MS = 60_000;
const GAP_MS = 2500;
const STEP_MS = 150; // closer points are dropped

/** Points of one person over time: {at, label, uncertain, probabilities}. */
export class History {
  constructor() {
    this.points = [];
  }

  add({ label, uncertain, probabilities }, at) {
    const last = this.points.at(-1);
    const same = last && last.label === label && last.uncertain === uncertain;
    if (same && at - last.at < STEP_MS) return;
    this.points.push({ at, label, uncertain, probabilities });
    while (this.points[0].at < at - SPAN_MS - GAP_MS) this.points.shift();
  }

  /** End of a point: the time of the next one, unless the person was out of view in between. */
  until(index, now) {
    const { at } = this.points[index];
    const next = this.points[index + 1]?.at ?? now;
    return next - at > GAP_MS ? at + STEP_MS : next;
  }

  /** The point at a moment, or undefined. */
  at(moment, now) {
    let [low, high] = [0, this.points.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.points[middle].at <= moment) low = middle + 1;
      else high = middle;
    }
    return low && moment <= this.until(low - 1, now) ? this.points[low - 1] : undefined;
  }

  /** Seconds per shown label in the last minute, longest first: [["neutral", 41.2], ...]. */
  seconds(now) {
    const sums = new Map();
    this.points.forEach((point, index) => {
      const held = (this.until(index, now) - Math.max(point.at, now - SPAN_MS)) / 1000;
      const name = point.uncertain ? UNCERTAIN : point.label;
      if (held > 0) sums.set(name, (sums.get(name) ?? 0) + held);
    });
    return [...sums].sort(([, one], [, other]) => other - one);
  }
}
