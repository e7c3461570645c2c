// What tells the faces of one stream apart: their look in 8x8 cells, less that of a mean face
// (app/inference/tracker.py).

import { facts } from "./labels.js";

const GRID = 8;

/** A vector to compare the faces of one stream, of RGBA pixels of an aligned face; undefined if it is of one color. */
export function descriptorOf({ width, data }) {
  const side = width / GRID;
  const cells = new Float64Array(3 * GRID * GRID);
  for (let y = 0, from = 0; y < width; y++) {
    const row = 3 * GRID * Math.floor(y / side);
    for (let x = 0; x < width; x++, from += 4) {
      const cell = row + 3 * Math.floor(x / side);
      for (let channel = 0; channel < 3; channel++) cells[cell + channel] += data[from + channel];
    }
  }
  const mean = cells.reduce((sum, value) => sum + value, 0) / cells.length;
  const centered = cells.map((value) => value - mean);
  const contrast = lengthOf(centered);
  if (contrast < side * side) return undefined;
  return unit(centered.map((value, index) => value / contrast - facts.tracking.mean_face[Math.floor(index / 3)]));
}

/** Similarity of two descriptors, at most 1. */
export const dot = (one, other) => one.reduce((sum, value, index) => sum + value * other[index], 0);

const lengthOf = (vector) => Math.sqrt(dot(vector, vector));

export function unit(vector) {
  const length = lengthOf(vector);
  return vector.map((value) => value / length);
}
