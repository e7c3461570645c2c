// The last minute of one person: what was shown when, and how sure the model was.

import { LABELS, UNCERTAIN, colorOnPage } from "./labels.js";

export const SPAN_MS = 60_000;
const GAP_MS = 2500;

export class Timeline {
  constructor(canvas) {
    this.canvas = canvas;
    this.points = [];
  }

  add(label, confidence, at) {
    this.points.push({ label, confidence, at });
    while (this.points.length && this.points[0].at < at - SPAN_MS - GAP_MS) this.points.shift();
  }

  /** Seconds per label, longest first: [["neutral", 41.2], ...]. */
  seconds(now) {
    const sums = new Map();
    for (const [point, until] of this.spans(now)) {
      sums.set(point.label, (sums.get(point.label) ?? 0) + (until - Math.max(point.at, now - SPAN_MS)) / 1000);
    }
    return [...sums].filter(([, seconds]) => seconds > 0).sort((one, other) => other[1] - one[1]);
  }

  /** Each point with the moment until which it holds: the next point, unless nobody was seen in between. */
  * spans(now) {
    for (let index = 0; index < this.points.length; index++) {
      const point = this.points[index];
      const next = this.points[index + 1]?.at ?? now;
      const until = next - point.at > GAP_MS ? point.at + 200 : next;
      if (until > now - SPAN_MS) yield [point, until];
    }
  }

  describe(now) {
    const parts = this.seconds(now).map(([label, seconds]) => `${label} ${Math.round(seconds)} s`);
    return `Last 60 seconds: ${parts.join(", ") || "nothing yet"}`;
  }

  draw(now) {
    const ratio = window.devicePixelRatio || 1;
    const width = Math.round(this.canvas.clientWidth * ratio);
    const height = Math.round(this.canvas.clientHeight * ratio);
    if (!width || !height) return;
    if (this.canvas.width !== width || this.canvas.height !== height) Object.assign(this.canvas, { width, height });
    const context = this.canvas.getContext("2d");
    const colors = Object.fromEntries([...LABELS, UNCERTAIN].map((label) => [label, colorOnPage(label)]));
    const x = (at) => width * (1 - (now - at) / SPAN_MS);
    context.clearRect(0, 0, width, height);
    for (const [point, until] of this.spans(now)) {
      const left = x(point.at);
      const tall = Math.max(point.confidence, 0.04) * height;
      context.globalAlpha = point.label === UNCERTAIN ? 0.45 : 1;
      context.fillStyle = colors[point.label];
      context.fillRect(left, height - tall, Math.max(x(until) - left + 0.6, 1), tall);
    }
  }
}
