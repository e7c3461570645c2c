// The plot of a history: stacked probabilities with the displayed label at the bottom, and the threshold.

import { LABELS, colorOf, percent } from "./labels.js";

const COLUMN_PX = 2;

/**
 * Draw a history from `from` to `to`, in ms, on a context of `width` by `height` pixels; `ratio`: pixels per CSS pixel; `ink`: color of lines and text.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {import("./history.js").History} history
 * @param {{width: number, height: number, ratio: number, ink: string, from: number, to: number, threshold: number}} how
 */
export function plot(context, history, { width, height, ratio, ink, from, to, threshold }) {
  context.clearRect(0, 0, width, height);
  const step = Math.max(1, Math.round(COLUMN_PX * ratio));
  for (let x = 0; x < width; x += step) {
    const point = history.at(from + ((x + step / 2) / width) * (to - from), to);
    if (point) drawColumn(context, point, { x, width: step, height, edge: Math.max(1, Math.round(ratio)), ink });
  }
  if (threshold > 0) drawThreshold(context, threshold, { width, height, ratio, ink });
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
function drawThreshold(context, threshold, { width, height, ratio, ink }) {
  const y = Math.round(height * (1 - threshold));
  context.fillStyle = ink;
  context.fillRect(0, y, width, Math.max(1, Math.round(ratio)));
  Object.assign(context, { font: `${10 * ratio}px system-ui, sans-serif`, direction: "ltr", textAlign: "left", textBaseline: threshold > 0.7 ? "top" : "bottom" });
  context.fillText(percent(threshold), 3 * ratio, y + (threshold > 0.7 ? 3 : -2) * ratio);
}
