// Where did the model look? A small picture per face, as the service draws it; only where its model can tell.

import { element } from "./dom.js";

const WORDS = "Where the model looked: a hint at its reason, no proof";

/** A figure for the `explanation` of a face. */
export async function attentionFigure({ overlay }) {
  const bytes = Uint8Array.from(atob(overlay.base64), (character) => character.charCodeAt(0));
  const picture = await createImageBitmap(new Blob([bytes], { type: overlay.media_type }));
  const canvas = element("canvas", { width: picture.width, height: picture.height, role: "img", "aria-label": WORDS });
  canvas.getContext("2d").drawImage(picture, 0, 0);
  picture.close();
  return element("figure", { class: "attention" }, canvas, element("figcaption", { class: "quiet" }, WORDS));
}

/** Put a figure under a face's bars, in place of the one before. */
export function showAttention(block, figure) {
  block.querySelector(".attention")?.remove();
  block.querySelector(".bars").after(figure);
}

/** How much two boxes overlap: intersection over union. */
export function overlapOf(one, other) {
  const wide = Math.min(one.x + one.width, other.x + other.width) - Math.max(one.x, other.x);
  const tall = Math.min(one.y + one.height, other.y + other.height) - Math.max(one.y, other.y);
  if (wide <= 0 || tall <= 0) return 0;
  return (wide * tall) / (one.width * one.height + other.width * other.height - wide * tall);
}
