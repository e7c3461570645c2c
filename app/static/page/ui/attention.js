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

/** Request the maps of a frame, JPEG, and `attach(box, figure)` each. Resolves to a message. */
export async function explainFrame(labeler, frame, attach) {
  const takenAt = new Date();
  try {
    const { images: [{ faces }] } = await labeler.label(new Blob([frame], { type: "image/jpeg" }), { explain: true });
    for (const face of faces) attach(face.box, await attentionFigure(face.explanation, takenAt));
    return faces.length ? "Each card shows where the model looked" : "No face in this frame";
  } catch (error) {
    return `No attention map: ${error.detail ?? error.message}`;
  }
}
