// Pictures as {width, height, data}: RGBA, 8 bits, alpha is ignored. Resizing, rotating and cropping as OpenCV does them.

export const blank = (width, height) => ({ width, height, data: new Uint8ClampedArray(4 * width * height) });

/** Whether a canvas returns what is drawn on it; protection against fingerprinting can replace it by noise. */
export function isFaithful(context) {
  const color = [20, 120, 220, 255];
  context.fillStyle = `rgb(${color})`;
  context.fillRect(0, 0, 8, 8);
  return context.getImageData(0, 0, 8, 8).data.every((value, place) => Math.abs(value - color[place % 4]) < 8);
}

/** Round half to even, as Python and OpenCV do. */
export function round(value) {
  const low = Math.floor(value);
  const rest = value - low;
  if (rest === 0.5) return low + (low % 2 === 0 ? 0 : 1);
  return rest < 0.5 ? low : low + 1;
}

/** Reduce by the mean of the covered pixels (INTER_AREA); `width` and `height` are at most the picture's. */
export function reduce(picture, width, height) {
  const [across, down] = [picture.width / width, picture.height / height];
  if (across === down && across === 2) return halve(picture);
  return areaOf(picture, shares(picture.width, width), shares(picture.height, height), width, height);
}

/** The mean of 2x2 pixels, which OpenCV rounds up. */
function halve({ width, height, data }) {
  const half = blank(width / 2, height / 2);
  const row = 4 * width;
  for (let y = 0, to = 0; y < half.height; y++) {
    for (let x = 0, from = 2 * y * row; x < half.width; x++, from += 8, to += 4) {
      for (let c = 0; c < 3; c++) {
        half.data[to + c] = (data[from + c] + data[from + 4 + c] + data[from + row + c] + data[from + row + 4 + c] + 2) >> 2;
      }
    }
  }
  return half;
}

/** Which source pixels each target pixel covers, and how much of it: [first, weights][]. */
function shares(from, to) {
  const scale = from / to;
  return Array.from({ length: to }, (_, place) => {
    const [start, end] = [place * scale, Math.min((place + 1) * scale, from)];
    const first = Math.floor(start + 1e-9);
    const weights = [];
    for (let at = first; at < end - 1e-3; at++) weights.push((Math.min(at + 1, end) - Math.max(at, start)) / (end - start));
    return [first, weights];
  });
}

function areaOf({ width: stride, height: rows, data }, columns, lines, width, height) {
  const across = new Float32Array(3 * width * rows);
  for (let y = 0, to = 0; y < rows; y++) {
    for (const [first, weights] of columns) {
      let [red, green, blue] = [0, 0, 0];
      for (let at = 0, from = 4 * (y * stride + first); at < weights.length; at++, from += 4) {
        red += weights[at] * data[from];
        green += weights[at] * data[from + 1];
        blue += weights[at] * data[from + 2];
      }
      across[to++] = red;
      across[to++] = green;
      across[to++] = blue;
    }
  }
  const out = blank(width, height);
  const sums = new Float32Array(3 * width);
  lines.forEach(([first, weights], y) => {
    sums.fill(0);
    weights.forEach((weight, at) => {
      const from = 3 * width * (first + at);
      for (let i = 0; i < sums.length; i++) sums[i] += weight * across[from + i];
    });
    for (let x = 0, to = 4 * width * y, i = 0; x < width; x++, to += 4) for (let c = 0; c < 3; c++) out.data[to + c] = sums[i++]; // rounds
  });
  return out;
}

/** Enlarge by bilinear interpolation between the centers of pixels (INTER_LINEAR). */
export function enlarge(picture, width, height) {
  const [across, down] = [picture.width / width, picture.height / height];
  return sample(picture, width, height, (x, y) => [(x + 0.5) * across - 0.5, (y + 0.5) * down - 0.5]);
}

/** Bilinear samples of a picture at `place(x, y)`; outside of it, its edge is repeated. */
export function sample({ width: wide, height: tall, data }, width, height, place) {
  const out = blank(width, height);
  const clip = (value, limit) => Math.min(Math.max(value, 0), limit - 1);
  for (let y = 0, to = 0; y < height; y++) {
    for (let x = 0; x < width; x++, to += 4) {
      const [atX, atY] = place(x, y);
      const [left, top] = [Math.floor(atX), Math.floor(atY)];
      const [fx, fy] = [atX - left, atY - top];
      const [x0, x1] = [4 * clip(left, wide), 4 * clip(left + 1, wide)];
      const [y0, y1] = [4 * wide * clip(top, tall), 4 * wide * clip(top + 1, tall)];
      for (let c = 0; c < 3; c++) {
        const upper = data[y0 + x0 + c] * (1 - fx) + data[y0 + x1 + c] * fx;
        const lower = data[y1 + x0 + c] * (1 - fx) + data[y1 + x1 + c] * fx;
        out.data[to + c] = upper * (1 - fy) + lower * fy; // rounds
      }
    }
  }
  return out;
}

/** Rotate clockwise by `turns` quarters. */
export function rotated(picture, turns) {
  if (!turns) return picture;
  const { width, height } = picture;
  const out = turns === 2 ? blank(width, height) : blank(height, width);
  const [from, to] = [new Uint32Array(picture.data.buffer), new Uint32Array(out.data.buffer)];
  for (let y = 0, at = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const [newX, newY] = turns === 1 ? [height - 1 - y, x] : turns === 2 ? [width - 1 - x, height - 1 - y] : [y, width - 1 - x];
      to[newY * out.width + newX] = from[at++];
    }
  }
  return out;
}

/** The rectangle at (left, top); black outside of the picture. */
export function cut(picture, left, top, width, height) {
  const out = blank(width, height);
  const [firstX, lastX] = [Math.max(left, 0), Math.min(left + width, picture.width)];
  for (let y = Math.max(top, 0); y < Math.min(top + height, picture.height) && firstX < lastX; y++) {
    const row = y * picture.width;
    out.data.set(picture.data.subarray(4 * (row + firstX), 4 * (row + lastX)), 4 * ((y - top) * width + firstX - left));
  }
  return out;
}
