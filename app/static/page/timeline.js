// What one person showed in the last minute: points of label and probabilities, and their plot.

import { element, resize, setText } from "./dom.js";
import { LABELS, UNCERTAIN, percent, plotColor, ranked } from "./labels.js";

export const SPAN_MS = 60_000;
const GAP_MS = 2500;
const STEP_MS = 150; // closer points are dropped
const COLUMN_PX = 2;

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
    const index = this.points.findLastIndex(({ at }) => at <= moment);
    return index >= 0 && moment <= this.until(index, now) ? this.points[index] : undefined;
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

/**
 * Draw the last minute of a history: stacked probabilities with the displayed label at the bottom, and the threshold.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {History} history
 * @param {{width: number, height: number, ratio: number, ink: string, now: number, threshold: number}} how `width` and
 * `height` in pixels, `ratio`: pixels per CSS pixel; `ink`: color of lines and text
 */
export function plot(context, history, { width, height, ratio, ink, now, threshold }) {
  context.clearRect(0, 0, width, height);
  const step = Math.max(1, Math.round(COLUMN_PX * ratio));
  for (let x = 0; x < width; x += step) {
    const point = history.at(now + ((x + step / 2) / width - 1) * SPAN_MS, now);
    if (point) drawColumn(context, point, { x, width: step, height, edge: Math.max(1, Math.round(ratio)), ink });
  }
  if (threshold <= 0) return;
  const y = Math.round(height * (1 - threshold));
  context.fillStyle = ink;
  context.fillRect(0, y, width, Math.max(1, Math.round(ratio)));
  Object.assign(context, {
    font: `${10 * ratio}px system-ui, sans-serif`,
    direction: "ltr",
    textAlign: "left",
    textBaseline: threshold > 0.7 ? "top" : "bottom",
  });
  context.fillText(percent(threshold), 3 * ratio, y + (threshold > 0.7 ? 3 : -2) * ratio);
}

/**
 * One moment: the displayed label at the bottom with a line above it, hatched if it is uncertain, then the others in
 * their order.
 */
function drawColumn(context, { label, uncertain, probabilities }, { x, width, height, edge, ink }) {
  let bottom = height;
  for (const name of [label, ...LABELS.filter((other) => other !== label)]) {
    const tall = probabilities[name] * height;
    context.fillStyle = plotColor(name);
    context.globalAlpha = name === label && !uncertain ? 1 : 0.3;
    context.fillRect(x, bottom - tall, width, tall);
    context.globalAlpha = 1;
    if (name === label) {
      if (uncertain) hatch(context, x, bottom - tall, width, tall);
      context.fillStyle = ink;
      context.fillRect(x, bottom - tall, width, edge);
    }
    bottom -= tall;
  }
}

/** Diagonal stripes, as far as they lie in one column. */
function hatch(context, x, top, width, tall) {
  const stripe = 2 * width;
  for (let y = top - ((x + top) % (2 * stripe)); y < top + tall; y += 2 * stripe) {
    const [first, last] = [Math.max(y, top), Math.min(y + stripe, top + tall)];
    if (last > first) context.fillRect(x, first, width, last - first);
  }
}

/** The timeline on the card of a person: canvas, axis and tooltip. */
export class Timeline {
  constructor() {
    this.history = new History();
    this.canvas = element("canvas", { class: "timeline", role: "img" });
    this.tip = element("p", { class: "tip", hidden: true, "aria-hidden": "true" });
    const [start, end] = ["60 s ago", "now"].map((text) => element("span", { "aria-hidden": "true" }, text));
    this.root = element(
      "div",
      { class: "timeline-box" },
      this.canvas,
      this.tip,
      element("div", { class: "axis" }, start, end),
    );
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
  }

  point(event) {
    const { left, width } = this.canvas.getBoundingClientRect();
    const now = performance.now();
    const agoMs = SPAN_MS * (1 - (event.clientX - left) / width);
    const found = this.history.at(now - agoMs, now);
    this.tip.hidden = !found;
    if (!found) return;
    const top = ranked(found.probabilities)
      .slice(0, 3)
      .map((label) => `${label} ${percent(found.probabilities[label])}`);
    setText(this.tip, `${Math.round(agoMs / 1000)} s ago: ${top.join(", ")}`);
  }

  draw(now, threshold) {
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
    resize(canvas, width, height);
    plot(canvas.getContext("2d"), this.history, {
      width,
      height,
      ratio,
      ink: getComputedStyle(canvas).color,
      now,
      threshold,
    });
    const parts = this.history.seconds(now).map(([label, seconds]) => `${label} ${Math.round(seconds)} s`);
    canvas.setAttribute("aria-label", `Last 60 seconds: ${parts.join(", ") || "nothing yet"}`);
  }
}
