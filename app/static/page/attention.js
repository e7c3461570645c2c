// Attention maps: a small picture per face, as the service draws it; only for models that have them.

import { element } from "./dom.js";

const WORDS = "Where the model looked: a hint, not a proof";

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
