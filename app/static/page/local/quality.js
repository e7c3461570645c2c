// Properties of a face that decide how far its label can be trusted: data/quality.py in the browser.

import { similarity } from "./align.js";
import { round } from "./pixels.js";

/** Size, blur, yaw, brightness and covered parts of a face, from its crop (a picture) and its five points. */
export function measure(crop, points, { crop: template, quality: facts }) {
  const gray = grayOf(crop);
  const [[a], [b]] = similarity(points, template);
  const side = template.px / Math.hypot(a, b);
  const softness = softnessOf(gray, template.px, facts);
  const resampled = facts.resampled_px[0] + (facts.resampled_px[1] * template.px) / side;
  return {
    width: facts.face_share * side,
    softness,
    blur: Math.sqrt(Math.max(0, softness ** 2 - resampled ** 2)),
    yaw: yawOf(points, facts),
    brightness: gray.reduce((sum, value) => sum + value, 0) / gray.length / 255,
    covered: coveredOf(crop, template.px, facts),
  };
}

/** Reasons for doubt that the properties give, in the order of data/quality.py. */
export function reasonsOf({ width, blur, yaw, brightness, covered }, { limits }) {
  const beyond = { small: width < limits.small, blurred: blur > limits.blurred, turned: Math.abs(yaw) > limits.turned,
    dark: brightness < limits.dark, covered: covered > limits.covered };
  return Object.keys(beyond).filter((reason) => beyond[reason]);
}

/** Softer probabilities of blurred, turned and covered faces, or by a share of that. */
export function soften(row, { softness, blur, yaw, covered }, { usual_softness_px: usualPx, usual_yaw: usualYaw, softening }, share = 1) {
  const beyond = { per_px: softness - usualPx, per_blur_px: blur, per_degree: Math.abs(yaw) - usualYaw, per_covered: covered };
  const raised = Object.entries(beyond).reduce((sum, [name, value]) => sum + softening[name] * Math.max(0, value), 0);
  const factor = 1 + share * Math.max(0, raised);
  const powers = row.map((value) => value ** (1 / factor));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

/** Luminance, in OpenCV's integers. */
function grayOf({ data }) {
  return Float64Array.from({ length: data.length / 4 }, (_, at) =>
    (9798 * data[4 * at] + 19235 * data[4 * at + 1] + 3735 * data[4 * at + 2] + 16384) >> 15);
}

function softnessOf(gray, px, { smoothed_px: first, reblur_px: more, max_blur_px: most }) {
  const side = px / 2;
  const half = means(gray, px, side).map((value) => Math.floor(value + 0.5)); // as OpenCV rounds the mean of 2x2 pixels
  const smoothed = energyOf(gaussian(half, side, first / 2, 2), side) + 1e-9;
  const blurred = energyOf(gaussian(half, side, Math.hypot(first, more) / 2, 5), side) + 1e-9;
  const excess = (smoothed / blurred) ** 2 - 1;
  return excess < 1e-3 ? most : Math.min(most, Math.sqrt(Math.max(0, more ** 2 / excess - first ** 2)));
}

/** OpenCV's Gaussian kernel for 8-bit values: 2 `radius` + 1 integers, whose sum is 256. */
function gaussianKernel(sigma, radius) {
  const weights = Array.from({ length: 2 * radius + 1 }, (_, at) => Math.exp(-((at - radius) ** 2) / (2 * sigma ** 2)));
  const sum = weights.reduce((total, weight) => total + weight, 0);
  const kernel = new Array(weights.length);
  let [rest, center] = [0, 256];
  for (let at = 0; at < radius; at++) {
    const exact = (256 * weights[at]) / sum + rest;
    kernel[at] = kernel[2 * radius - at] = round(exact);
    rest = exact - kernel[at];
    center -= 2 * kernel[at];
  }
  kernel[radius] = center;
  return kernel;
}

/** Gaussian blur of 8-bit values; the border is mirrored without its edge. */
function gaussian(values, px, sigma, radius) {
  const kernel = gaussianKernel(sigma, radius);
  const mirrored = (at) => (at < 0 ? -at : at >= px ? 2 * px - 2 - at : at);
  const pass = (from, step, other) => {
    const to = new Float64Array(from.length);
    for (let line = 0; line < px; line++) {
      for (let at = 0; at < px; at++) {
        let total = 0;
        for (let tap = -radius; tap <= radius; tap++) total += kernel[tap + radius] * from[line * other + mirrored(at + tap) * step];
        to[line * other + at * step] = total;
      }
    }
    return to;
  };
  return pass(pass(values, 1, px), px, 1).map((value) => Math.floor(value / 65536 + 0.5));
}

/** Sum of the squared differences between the neighbors of each pixel, across and down. */
function energyOf(values, px) {
  let total = 0;
  for (let y = 0; y < px; y++) {
    for (let x = 0; x < px; x++) {
      if (x > 0 && x < px - 1) total += (values[y * px + x + 1] - values[y * px + x - 1]) ** 2;
      if (y > 0 && y < px - 1) total += (values[(y + 1) * px + x] - values[(y - 1) * px + x]) ** 2;
    }
  }
  return total;
}

function yawOf(points, { width_mm: width, nose_mm: nose }) {
  const [left, right, tip, mouthLeft, mouthRight] = points;
  const across = [0, 1].map((axis) => (right[axis] - left[axis] + mouthRight[axis] - mouthLeft[axis]) / 2);
  const size = Math.hypot(...across);
  const off = [0, 1].map((axis) => tip[axis] - (left[axis] + right[axis] + mouthLeft[axis] + mouthRight[axis]) / 4);
  if (size < 1e-3) return 0;
  return round((1800 / Math.PI) * Math.atan2(((off[0] * across[0] + off[1] * across[1]) / size) * width, size * nose)) / 10;
}

function coveredOf({ data }, px, { cover: { weights, bias }, cover_grid: grid, luma }) {
  const [red, green, blue] = [0, 1, 2].map((channel) => {
    const values = Float64Array.from({ length: px * px }, (_, at) => data[4 * at + channel]);
    return means(values, px, grid).map(round); // OpenCV reduces 8-bit values
  });
  const gray = red.map((value, at) => luma[0] * value + luma[1] * green[at] + luma[2] * blue[at]);
  const luminance = normalized(gray, grid);
  const edges = [[1, 0], [0, 1]].map(([dx, dy]) => edgesOf(luminance, grid, dx, dy));
  const colors = [red, blue].map((channel) => channel.map((value, at) => (value - gray[at]) / 16));
  const features = [];
  for (let y = 5; y < 28; y++) for (let x = 2; x < 26; x++) features.push(luminance[y * grid + x]);
  for (const part of [...edges, ...colors].map((values) => means(values, grid, grid / 2))) {
    for (let y = 2; y < 14; y++) for (let x = 1; x < 13; x++) features.push(part[(y * grid) / 2 + x]);
  }
  return features.reduce((sum, value, at) => sum + value * weights[at], bias);
}

/** Reduce a square to `to` by `to` means. */
function means(values, from, to) {
  const side = from / to;
  const out = new Float64Array(to * to);
  for (let y = 0; y < from; y++) for (let x = 0; x < from; x++) out[Math.floor(y / side) * to + Math.floor(x / side)] += values[y * from + x] / side ** 2;
  return out;
}

function normalized(small, grid) {
  const inner = [];
  for (let y = 4; y < 26; y++) for (let x = 3; x < 25; x++) inner.push(small[y * grid + x]);
  const mean = inner.reduce((sum, value) => sum + value, 0) / inner.length;
  const contrast = Math.sqrt(inner.reduce((sum, value) => sum + (value - mean) ** 2, 0) / inner.length);
  return small.map((value) => (value - mean) / (contrast + 4));
}

function edgesOf(values, grid, dx, dy) {
  const inside = (at) => (at < 0 ? -at : at >= grid ? 2 * grid - 2 - at : at);
  return values.map((_, at) => {
    const [x, y] = [at % grid, Math.floor(at / grid)];
    return Math.abs(values[inside(y + dy) * grid + inside(x + dx)] - values[inside(y - dy) * grid + inside(x - dx)]);
  });
}
