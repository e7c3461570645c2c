// What the page itself sees in a frame: how each face looks, and whether another scene of a video begins.

import { descriptorOf } from "./descriptor.js";
import { facts } from "./labels.js";
import { similarity } from "./local/align.js";

const SMALL = [64, 36]; // pixels of a frame in which cuts are looked for

/** The faces of a frame with their descriptors; local mode has computed them. */
export const describe = (faces, frame) => faces.map((face) => ({ ...face, descriptor: face.descriptor ?? lookOf(face, frame) }));

function lookOf({ landmarks }, frame) {
  const { px } = facts.crop;
  const found = similarity(Object.values(landmarks).map(({ x, y }) => [x, y]), facts.crop);
  if (!found) return undefined;
  const [[a, , x], [b, , y]] = found;
  return descriptorOf(pixelsOf(frame, px, px, [a, b, -b, a, x, y]));
}

/** RGBA pixels of a frame, small. */
export const smallOf = (frame) => pixelsOf(frame, ...SMALL, [SMALL[0] / frame.width, 0, 0, SMALL[1] / frame.height, 0, 0]);

function pixelsOf(frame, width, height, transform) {
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.setTransform(...transform);
  context.drawImage(frame, 0, 0);
  return context.getImageData(0, 0, width, height);
}
