// Upright pictures of photo files. Browsers turn a JPEG as its EXIF data say, but not a WebP.

const HAS_EXIF = 8; // bit of a WebP's extended header
const ORIENTATION = 0x0112;
// [a, b, c, d] of a canvas, by EXIF orientation
const TURNS = {
  2: [-1, 0, 0, 1],
  3: [-1, 0, 0, -1],
  4: [1, 0, 0, -1],
  5: [0, 1, 1, 0],
  6: [0, 1, -1, 0],
  7: [0, -1, -1, 0],
  8: [0, -1, 1, 0],
};

/**
 * The upright picture of a file; `options` are those of createImageBitmap. Rejects if this browser cannot read the
 * file.
 */
export async function uprightBitmap(file, options = {}) {
  const turn = TURNS[await webpOrientation(file)];
  if (!turn) return createImageBitmap(file, { ...options, imageOrientation: "from-image" });
  const bitmap = await createImageBitmap(file, { ...options, imageOrientation: "none" });
  const [a, b, c, d] = turn;
  const { width, height } = bitmap;
  const canvas = a ? new OffscreenCanvas(width, height) : new OffscreenCanvas(height, width);
  const context = canvas.getContext("2d");
  context.setTransform(a, b, c, d, a + c < 0 ? canvas.width : 0, b + d < 0 ? canvas.height : 0);
  context.drawImage(bitmap, 0, 0);
  bitmap.close();
  return canvas.transferToImageBitmap();
}

/** EXIF orientation of a WebP, 1 to 8; undefined for other files and without EXIF data. */
export async function webpOrientation(file) {
  try {
    const head = new DataView(await file.slice(0, 21).arrayBuffer());
    if (textOf(head, 8, 8) !== "WEBPVP8X" || !(head.getUint8(20) & HAS_EXIF)) return undefined;
    const view = new DataView(await file.arrayBuffer());
    for (let at = 12; ; at += 8 + 2 * Math.ceil(view.getUint32(at + 4, true) / 2)) {
      if (textOf(view, at, 4) === "EXIF") return orientationAt(view, at + 8);
    }
  } catch {
    return undefined; // the file is unreadable, or ends early
  }
}

/** Orientation of the TIFF structure at an offset. */
function orientationAt(view, offset) {
  const start = offset + (textOf(view, offset, 4) === "Exif" ? 6 : 0);
  const little = textOf(view, start, 2) === "II";
  const directory = start + view.getUint32(start + 4, little);
  for (let entry = 0; entry < view.getUint16(directory, little); entry++) {
    const at = directory + 2 + 12 * entry;
    if (view.getUint16(at, little) === ORIENTATION) return view.getUint16(at + 8, little);
  }
  return undefined;
}

const textOf = (view, at, length) =>
  String.fromCharCode(...Array.from({ length }, (_, index) => view.getUint8(at + index)));
