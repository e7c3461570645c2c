// Attention maps: one small picture per face, drawn by the service; only for models that have them.

import { element } from "./dom.js";
import { fromBase64 } from "./pictures.js";

const WORDS = "Where the model looked: a hint, not a proof";

/** A figure for the `explanation` of a face; with the time of its frame, it can be closed. */
export async function attentionFigure({ overlay }, takenAt) {
  const picture = await createImageBitmap(fromBase64(overlay));
  const canvas = element("canvas", { width: picture.width, height: picture.height, role: "img", "aria-label": WORDS });
  canvas.getContext("2d").drawImage(picture, 0, 0);
  picture.close();
  const caption = takenAt ? `${takenAt.toLocaleTimeString()}: ${WORDS[0].toLowerCase()}${WORDS.slice(1)}` : WORDS;
  const figure = element("figure", { class: "attention" }, canvas, element("figcaption", { class: "quiet" }, caption));
  if (takenAt) figure.append(closeButton(figure));
  return figure;
}

function closeButton(figure) {
  const button = element("button", { class: "close", "aria-label": "Close the attention map", title: "Close" }, "×");
  button.addEventListener("click", () => {
    figure.closest(".face").querySelector(".more").focus();
    figure.remove();
  });
  return button;
}

/** Show a figure below the bars of a face, replacing the previous one. */
export function showAttention(block, figure) {
  block.querySelector(".attention")?.remove();
  block.querySelector(".bars").after(figure);
}
