// How is a face drawn over a picture? One way for the live view and for photos.

import { colorOnPicture, likeliest, percent } from "./labels.js";

const DARK = "rgb(20 20 20)";

/** The text on a face's tag. */
export function tagOf(face) {
  const label = likeliest(face);
  return `${label}${face.uncertain ? "?" : ""} ${percent(face.probabilities[label])}`;
}

/**
 * Draw one face.
 *
 * @param {CanvasRenderingContext2D} context
 * @param {object} face as the service answers it
 * @param {{x: number, y: number, width: number, height: number}} box in pixels of the canvas
 * @param {{unit?: number, opacity?: number, edge?: {x: number, y: number, width: number, height: number}}} how
 *   `unit`: size of a line, `edge`: where the picture lies on the canvas, so that tags stay inside
 */
export function drawFace(context, face, box, { unit = 1, opacity = 1, edge = null } = {}) {
  const color = colorOnPicture(likeliest(face));
  context.save();
  context.globalAlpha = opacity;
  if (face.uncertain) context.setLineDash([8 * unit, 6 * unit]);
  for (const [style, width] of [[DARK, 5 * unit], [color, 2.5 * unit]]) {
    context.strokeStyle = style;
    context.lineWidth = width;
    context.beginPath();
    context.roundRect(box.x, box.y, box.width, box.height, 6 * unit);
    context.stroke();
  }
  drawTag(context, tagOf(face), box, { color, unit, edge });
  context.restore();
}

function drawTag(context, text, box, { color, unit, edge }) {
  const size = Math.min(Math.max(box.width / 8, 13 * unit), 30 * unit);
  const pad = size * 0.4;
  const area = edge ?? { x: 0, y: 0, width: context.canvas.width, height: context.canvas.height };
  context.font = `600 ${size}px system-ui, sans-serif`;
  const width = context.measureText(text).width + 2 * pad;
  const height = size * 1.5;
  const x = Math.min(Math.max(box.x, area.x), Math.max(area.x, area.x + area.width - width));
  const above = box.y - height - 2 * unit;
  const below = Math.min(box.y + box.height + 2 * unit, area.y + area.height - height);
  const y = above >= area.y ? above : below;
  context.fillStyle = color;
  context.beginPath();
  context.roundRect(x, y, width, height, 4 * unit);
  context.fill();
  context.fillStyle = DARK;
  context.textBaseline = "middle";
  context.fillText(text, x + pad, y + height / 2 + size * 0.04);
}
