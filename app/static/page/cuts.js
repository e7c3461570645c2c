// Cuts of a video, by the mean change of hue, saturation and value from one frame to the next (app/video/reader.py).

import { facts } from "./labels.js";

export class Cuts {
  /** Whether another scene begins with the next frame, given as RGBA pixels of a small picture. */
  isCut({ data }) {
    const hsv = hsvOf(data);
    const last = this.last;
    this.last = hsv;
    return (
      Boolean(last) &&
      hsv.reduce((sum, value, index) => sum + Math.abs(value - last[index]), 0) / hsv.length >=
        facts.tracking.cut_change
    );
  }
}

/** Hue from 0 to 180, saturation and value from 0 to 255, as OpenCV has them in bytes. */
function hsvOf(data) {
  const hsv = new Float32Array((data.length / 4) * 3);
  for (let from = 0, to = 0; from < data.length; from += 4, to += 3) {
    const [r, g, b] = [data[from], data[from + 1], data[from + 2]];
    const most = Math.max(r, g, b);
    const range = most - Math.min(r, g, b);
    const turn = most === r ? (g - b) / range : most === g ? 2 + (b - r) / range : 4 + (r - g) / range;
    hsv[to] = range ? (turn < 0 ? turn + 6 : turn) * 30 : 0;
    hsv[to + 1] = most ? (255 * range) / most : 0;
    hsv[to + 2] = most;
  }
  return hsv;
}
