// Attention maps: one small picture per face, drawn by the service; only for models that have them.

import { element } from "./dom.js";
import { fromBase64 } from "./pictures.js";

const WORDS = "Where the model looked: a hint, not a proof";

/** A figure for the `explanation` of a face. */
export async function attentionFigure({ overlay }) {
  const picture = await createImageBitmap(fromBase64(overlay));
  const canvas = element("canvas", { width: picture.width, height: picture.height, role: "img", "aria-label": WORDS });
  canvas.getContext("2d").drawImage(picture, 0, 0);
  picture.close();
  return element("figure", { class: "attention" }, canvas, element("figcaption", { class: "quiet" }, WORDS));
}

/** Show a figure below the bars of a face, replacing the previous one. */
export function showAttention(block, figure) {
  block.querySelector(".attention")?.remove();
  block.querySelector(".bars").after(figure);
}
