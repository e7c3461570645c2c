// Attention maps: one small picture per face, drawn by the service; only for models that have them.

import { element } from "./dom.js";
import { fromBase64 } from "./pictures.js";

const WORDS = "Where the model looked: a hint, not a proof";

/** Show the `explanation` of a face below its bars. */
export async function showAttention(block, { overlay }) {
  const picture = await createImageBitmap(fromBase64(overlay));
  const canvas = element("canvas", { width: picture.width, height: picture.height, role: "img", "aria-label": WORDS });
  canvas.getContext("2d").drawImage(picture, 0, 0);
  picture.close();
  block.querySelector(".bars").after(element("figure", { class: "attention" }, canvas, element("figcaption", { class: "quiet" }, WORDS)));
}
