// The outputs of a face network as faces: app/inference/detector.py in the browser.

/** (1, 3, H', W') float32: BGR, 0 to 255, padded at the right and below to whole cells. */
export function toBlob({ width, height, data }, gridPx) {
  const [across, down] = [Math.ceil(width / gridPx) * gridPx, Math.ceil(height / gridPx) * gridPx];
  const plane = across * down;
  const blob = new Float32Array(3 * plane);
  for (let y = 0, from = 0; y < height; y++) {
    for (let x = 0, to = y * across; x < width; x++, from += 4, to++) {
      blob[to] = data[from + 2];
      blob[to + plane] = data[from + 1];
      blob[to + 2 * plane] = data[from];
    }
  }
  return { blob, dims: [1, 3, down, across] };
}

/** Faces of the grids, best first. `grids`: values by output name; `across`: width of the blob in pixels. */
export function decode(grids, across, { strides, threshold, nms_iou: most, top_k: topK }) {
  const faces = strides.flatMap((stride) => cellsOf(grids, stride, Math.floor(across / stride), threshold));
  const kept = [];
  for (const face of faces.sort((a, b) => b.score - a.score).slice(0, topK)) {
    const whole = face.box.map(Math.trunc); // whole pixels, as OpenCV suppresses
    if (kept.every((other) => iou(whole, other.whole) <= most)) kept.push({ ...face, whole });
  }
  return kept.map(({ box, points, score }) => ({ box, points, score }));
}

function cellsOf(grids, stride, across, threshold) {
  const [cls, obj, bbox, kps] = ["cls", "obj", "bbox", "kps"].map((kind) => grids[`${kind}_${stride}`]);
  const unit = (value) => Math.min(Math.max(value, 0), 1);
  const faces = [];
  for (let cell = 0; cell < cls.length; cell++) {
    const score = Math.fround(Math.sqrt(unit(cls[cell]) * unit(obj[cell])));
    if (score <= threshold) continue;
    const [column, row] = [cell % across, Math.floor(cell / across)];
    const [dx, dy, logWidth, logHeight] = bbox.subarray(4 * cell, 4 * cell + 4);
    const [width, height] = [Math.exp(logWidth) * stride, Math.exp(logHeight) * stride];
    const points = [0, 2, 4, 6, 8].map((at) => [(kps[10 * cell + at] + column) * stride, (kps[10 * cell + at + 1] + row) * stride]);
    faces.push({ box: [(column + dx) * stride - width / 2, (row + dy) * stride - height / 2, width, height].map(Math.fround), points, score });
  }
  return faces;
}

/** Intersection over union of two boxes, [x, y, width, height]. */
export function iou([ax, ay, aw, ah], [bx, by, bw, bh]) {
  const [width, height] = [Math.min(ax + aw, bx + bw) - Math.max(ax, bx), Math.min(ay + ah, by + bh) - Math.max(ay, by)];
  return width <= 0 || height <= 0 ? 0 : (width * height) / (aw * ah + bw * bh - width * height);
}
