// The last minute of one person, as a plot with an axis.

import { History, SPAN_MS } from "../core/history.js";
import { percent, ranked } from "../core/labels.js";
import { plot } from "../core/plot.js";
import { element, resize, setText } from "./dom.js";

/** The timeline on the card of a person: canvas, axis and tooltip. */
export class Timeline {
  constructor() {
    this.history = new History();
    this.canvas = element("canvas", { class: "timeline", role: "img" });
    this.tip = element("p", { class: "tip", hidden: true, "aria-hidden": "true" });
    const [start, end] = ["60 s ago", "now"].map((text) => element("span", { "aria-hidden": "true" }, text));
    this.root = element("div", { class: "timeline-box" }, this.canvas, this.tip, element("div", { class: "axis" }, start, end));
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
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
    resize(canvas, width, height);
    plot(canvas.getContext("2d"), this.history, { width, height, ratio, ink: getComputedStyle(canvas).color, from: now - SPAN_MS, to: now, threshold });
    const parts = this.history.seconds(now).map(([label, seconds]) => `${label} ${Math.round(seconds)} s`);
    canvas.setAttribute("aria-label", `Last 60 seconds: ${parts.join(", ") || "nothing yet"}`);
  }
}
