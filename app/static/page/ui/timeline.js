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
  const step = Math.max(1, Math.round(COLUMN_PX * ratio));
  for (let x = 0; x < width; x += step) {
    const point = history.at(from + ((x + step / 2) / width) * (to - from), now);
    if (point) drawColumn(context, point, x, step, height);
  }
  if (threshold > 0) drawThreshold(context, width, height * (1 - threshold), ratio);
  return true;
}

/** One moment: the displayed label at the bottom, paler if it is uncertain, then the others in their order. */
function drawColumn(context, { label, uncertain, probabilities }, x, width, height) {
  let bottom = height;
  for (const name of [label, ...LABELS.filter((other) => other !== label)]) {
    const tall = probabilities[name] * height;
    context.globalAlpha = name === label && !uncertain ? 1 : 0.45;
    context.fillStyle = colorOf(name);
    context.fillRect(x, bottom - tall, width, tall);
    bottom -= tall;
  }
  context.globalAlpha = 1;
}

function drawThreshold(context, width, y, ratio) {
  for (const [color, line] of [["rgb(0 0 0 / 0.7)", 3], ["#fff", 1]]) {
    context.strokeStyle = color;
    context.lineWidth = line * ratio;
    context.setLineDash([5 * ratio, 4 * ratio]);
    context.beginPath();
    context.moveTo(0, y);
    context.lineTo(width, y);
    context.stroke();
  }
  context.setLineDash([]);
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
