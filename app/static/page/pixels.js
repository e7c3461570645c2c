// Pixels of canvases, as pages and workers read them.

/** Whether a canvas returns what is drawn on it; protection against fingerprinting can replace it by noise. */
export function isFaithful(context) {
  const color = [20, 120, 220, 255];
  context.fillStyle = `rgb(${color})`;
  context.fillRect(0, 0, 8, 8);
  return context.getImageData(0, 0, 8, 8).data.every((value, place) => Math.abs(value - color[place % 4]) < 8);
}

/** Pixels without their alpha channel. */
export function rgbOf(rgba) {
  const rgb = new Uint8Array((rgba.length / 4) * 3);
  for (let from = 0, to = 0; from < rgba.length; from += 4) {
    rgb[to++] = rgba[from];
    rgb[to++] = rgba[from + 1];
    rgb[to++] = rgba[from + 2];
  }
  return rgb;
}
