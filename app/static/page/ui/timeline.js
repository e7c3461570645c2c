// The last minute of one person: stacked probabilities with the displayed label at the bottom, and the threshold.

import { History, SPAN_MS } from "../core/history.js";
import { LABELS, colorOf, percent, ranked } from "../core/labels.js";
import { element, resize, setText } from "./dom.js";

const COLUMN_PX = 2;

/** Draw a history from `from` to `to` into the whole canvas; returns false if the canvas has no size. */
export function drawHistory(canvas, history, { from, to, now = to, threshold = 0 }) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
  if (!width || !height) return false;
  resize(canvas, width, height);
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  const ink = getComputedStyle(canvas).color;
  const step = Math.max(1, Math.round(COLUMN_PX * ratio));
  for (let x = 0; x < width; x += step) {
    const point = history.at(from + ((x + step / 2) / width) * (to - from), now);
    if (point) drawColumn(context, point, { x, width: step, height, edge: Math.max(1, Math.round(ratio)), ink });
  }
  if (threshold > 0) drawThreshold(context, threshold, ratio, ink);
  return true;
}

/** The color of an expression on a plot: gray is darker there, to differ from the ground. */
export const plotColor = (label) => (label === "neutral" ? "#7c8583" : colorOf(label));

/** One moment: the displayed label at the bottom with a line above it, hatched if it is uncertain, then the others in their order. */
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

/** A thin line with the value of the threshold. */
function drawThreshold(context, threshold, ratio, ink) {
  const y = Math.round(context.canvas.height * (1 - threshold));
  context.fillStyle = ink;
  context.fillRect(0, y, context.canvas.width, Math.max(1, Math.round(ratio)));
  Object.assign(context, { font: `${10 * ratio}px system-ui, sans-serif`, direction: "ltr", textAlign: "left", textBaseline: threshold > 0.7 ? "top" : "bottom" });
  context.fillText(percent(threshold), 3 * ratio, y + (threshold > 0.7 ? 3 : -2) * ratio);
}

/** The timeline on the card of a person: canvas, axis with `between` in its middle, and tooltip. */
export class Timeline {
  constructor(between) {
    this.history = new History();
    this.canvas = element("canvas", { class: "timeline", role: "img" });
    this.tip = element("p", { class: "tip", hidden: true, "aria-hidden": "true" });
    const [start, end] = ["60 s ago", "now"].map((text) => element("span", { "aria-hidden": "true" }, text));
    this.root = element("div", { class: "timeline-box" }, this.canvas, this.tip, element("div", { class: "axis" }, start, between, end));
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
    const top = ranked(found.probabilities).slice(0, 3).map((label) => `${label} ${percent(found.probabilities[label])}`);
    setText(this.tip, `${Math.round(agoMs / 1000)} s ago: ${top.join(", ")}`);
  }

  draw(now, threshold) {
    drawHistory(this.canvas, this.history, { from: now - SPAN_MS, to: now, threshold });
    const parts = this.history.seconds(now).map(([label, seconds]) => `${label} ${Math.round(seconds)} s`);
    this.canvas.setAttribute("aria-label", `Last 60 seconds: ${parts.join(", ") || "nothing yet"}`);
  }
}
