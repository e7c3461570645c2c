// The crop of a face: data/contract/pixels.py in the browser.

import { cut, reduce, sample } from "./pixels.js";

const STEPS = 32; // OpenCV samples at 32nds of a pixel

/** The least-squares similarity [[a, -b, x], [b, a, y]] from five points to the template; null if there is none. */
export function similarity(points, { template_px: template, min_spread_px: least }) {
  if (!points.flat().every(Number.isFinite)) return null;
  const mean = (of) => [0, 1].map((axis) => of.reduce((sum, point) => sum + point[axis], 0) / of.length);
  const [[px, py], [tx, ty]] = [mean(points), mean(template)];
  let [spread, a, b] = [0, 0, 0];
  points.forEach(([x, y], index) => {
    const [dx, dy, wantX, wantY] = [x - px, y - py, template[index][0] - tx, template[index][1] - ty];
    spread += dx * dx + dy * dy;
    a += dx * wantX + dy * wantY;
    b += dx * wantY - dy * wantX;
  });
  if (spread < least) return null;
  [a, b] = [a / spread, b / spread];
  if (a * a + b * b < 1e-12) return null;
  return [[a, -b, tx - (a * px - b * py)], [b, a, ty - (b * px + a * py)]];
}

/** Warp one face onto the template: a picture of `crop.px` by `crop.px`. */
export function align(picture, points, crop) {
  const [[a, , x], [b, , y]] = similarity(points, crop);
  const inverse = inverted(a, b, x, y);
  const [left, top, right, bottom] = regionOf(picture, inverse, a, b, crop.px);
  const [wide, tall] = [right - left, bottom - top];
  const shrink = Math.min(Math.max(1, Math.trunc(1 / Math.hypot(a, b))), wide, tall);
  const [width, height] = [Math.floor(wide / shrink), Math.floor(tall / shrink)];
  const region = cut(picture, left, top, width * shrink, height * shrink);
  const small = shrink > 1 ? reduce(region, width, height) : region;
  // a reduced pixel covers `shrink` pixels: its center is (shrink - 1) / 2 after the first
  const [startX, startY] = [left + (shrink - 1) / 2, top + (shrink - 1) / 2];
  const grid = (value) => Math.floor(value * STEPS + 0.5) / STEPS;
  return sample(small, crop.px, crop.px, (toX, toY) => {
    const [fromX, fromY] = inverse(toX, toY);
    return [grid((fromX - startX) / shrink), grid((fromY - startY) / shrink)];
  });
}

function inverted(a, b, x, y) {
  const norm = a * a + b * b;
  return (toX, toY) => [(a * (toX - x) + b * (toY - y)) / norm, (a * (toY - y) - b * (toX - x)) / norm];
}

/** The part of the picture that the crop covers, with a margin: [left, top, right, bottom]. */
function regionOf({ width, height }, inverse, a, b, px) {
  const seen = [[0, 0], [px, 0], [0, px], [px, px]].map(([x, y]) => inverse(x, y));
  const [xs, ys] = [seen.map(([x]) => x), seen.map(([, y]) => y)];
  const margin = 2 + 2 / Math.hypot(a, b);
  const clip = (value, low, high) => Math.min(Math.max(value, low), high);
  const left = clip(Math.floor(Math.min(...xs) - margin), 0, width - 1);
  const top = clip(Math.floor(Math.min(...ys) - margin), 0, height - 1);
  const right = clip(Math.ceil(Math.max(...xs) + margin), left + 1, width);
  const bottom = clip(Math.ceil(Math.max(...ys) + margin), top + 1, height);
  return [left, top, right, bottom];
}

/** The angle of the line between the eyes, in degrees, clockwise positive. */
export const rollDegrees = ([[leftX, leftY], [rightX, rightY]]) => (180 / Math.PI) * Math.atan2(rightY - leftY, rightX - leftX);
