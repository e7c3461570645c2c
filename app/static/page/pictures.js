// Photo files: formats that the browser or the service can read, and drawing of a photo with its faces.

import { uprightBitmap } from "./upright.js";
import { drawFaces, placed } from "./draw.js";

const BROWSER_ONLY = /\.(avif|hei[cf])$/i; // sent as JPEG, because not every service reads them
const SERVICE_ONLY = /\.tiff?$/i;
const VIDEO = /\.(mp4|m4v|mov|webm|ogv|mkv)$/i;
const PHOTO_QUALITY = 0.95;

export const isVideo = (file) => file.type.startsWith("video/") || VIDEO.test(file.name);

/** The upright picture, or null if this browser cannot read the format; then the service draws it. */
export async function readable(file) {
  if (SERVICE_ONLY.test(file.name)) return null;
  return uprightBitmap(file).catch(() => null);
}

/** The file to label: unchanged, or as JPEG if only browsers read its format. `local`: in this tab. Throws {detail}. */
export async function sendable(file, picture, local) {
  const browserOnly = BROWSER_ONLY.test(file.name) || /avif|hei[cf]/.test(file.type);
  if (picture) return browserOnly ? asJpeg(picture) : file;
  await file
    .stream()
    .getReader()
    .read()
    .catch(() => {
      throw unreadable("The file cannot be read: it is a folder, or was moved or changed.");
    });
  if (browserOnly)
    throw unreadable(
      "This browser cannot read this format. Safari reads HEIC, most browsers AVIF; or save the photo as JPEG.",
    );
  if (local) throw unreadable(await whyUnreadable(file));
  return file;
}

const unreadable = (detail) => ({ title: "Unreadable", detail });

async function whyUnreadable(file) {
  if (!file.size) return "The file is empty.";
  const start = new Uint8Array(await file.slice(0, 12).arrayBuffer());
  const text = String.fromCharCode(...start);
  if (text.startsWith("II*\0") || text.startsWith("MM\0*"))
    return "Local mode cannot read TIFF. Save the photo as JPEG, or turn off local mode.";
  if (/^(\xff\xd8\xff|\x89PNG|GIF8|BM|RIFF....WEBP)/s.test(text))
    return "The file is damaged: it starts like a photo, but cannot be decoded.";
  return "The file is not an image that browsers read.";
}

/** A bitmap or canvas as a blob. */
export function asJpeg(picture) {
  const canvas = Object.assign(document.createElement("canvas"), { width: picture.width, height: picture.height });
  canvas.getContext("2d").drawImage(picture, 0, 0);
  return new Promise((done) => canvas.toBlob(done, "image/jpeg", PHOTO_QUALITY));
}

/** An image of a response as a blob. */
export function fromBase64({ base64, media_type: type }) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return new Blob([bytes], { type });
}

/** Draw a picture with its faces, at most `longSidePx` large. `width`: of the original; `bold`: for small tiles. */
export function paint(canvas, picture, faces, width, longSidePx, { bold = false } = {}) {
  const shrink = Math.min(1, longSidePx / Math.max(picture.width, picture.height));
  canvas.width = Math.max(1, Math.round(picture.width * shrink));
  canvas.height = Math.max(1, Math.round(picture.height * shrink));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  const area = { x: 0, y: 0, width: canvas.width, height: canvas.height };
  drawFaces(
    context,
    placed(
      faces.map((face) => ({ face, box: face.box })),
      { width },
      area,
    ),
    { unit: Math.max(canvas.width, canvas.height) / (bold ? 330 : 700), area },
  );
}
