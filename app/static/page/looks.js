// What the page itself sees in a frame: how each face looks, and whether another scene of a video begins.

import { descriptorOf } from "./descriptor.js";
import { facts } from "./labels.js";

const SMALL = [64, 36]; // pixels of a frame in which cuts are looked for

/** The faces of a frame with their descriptors. */
export const describe = (faces, frame) => faces.map((face) => ({ ...face, descriptor: lookOf(face, frame) }));

function lookOf({ landmarks }, frame) {
  const { px, template_px: template } = facts.crop;
  return descriptorOf(pixelsOf(frame, px, px, similarity(Object.values(landmarks), template)));
}

/** The transform of a canvas that brings points {x, y} closest to a template of [x, y] (Umeyama 1991). */
export function similarity(points, template) {
  const meanOf = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [px, py] = [meanOf(points.map(({ x }) => x)), meanOf(points.map(({ y }) => y))];
  const [tx, ty] = [0, 1].map((axis) => meanOf(template.map((point) => point[axis])));
  let [spread, a, b] = [0, 0, 0];
  points.forEach(({ x, y }, index) => {
    const [dx, dy, templateX, templateY] = [x - px, y - py, template[index][0] - tx, template[index][1] - ty];
    spread += dx * dx + dy * dy;
    a += dx * templateX + dy * templateY;
    b += dx * templateY - dy * templateX;
  });
  [a, b] = [a / spread, b / spread];
  return [a, b, -b, a, tx - (a * px - b * py), ty - (b * px + a * py)];
}

/** RGBA pixels of a frame, small. */
export const smallOf = (frame) =>
  pixelsOf(frame, ...SMALL, [SMALL[0] / frame.width, 0, 0, SMALL[1] / frame.height, 0, 0]);

function pixelsOf(frame, width, height, transform) {
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.setTransform(...transform);
  context.drawImage(frame, 0, 0);
  return context.getImageData(0, 0, width, height);
}
