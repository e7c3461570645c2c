// The first screen: the sample photo, labeled by the model that runs here, before anybody is asked for anything.

import { attentionFigure, showAttention } from "./attention.js";
import { byId, element } from "./dom.js";
import { FaceBlock } from "./faces.js";
import { spoken } from "../core/labels.js";
import { paint } from "./pictures.js";

/** `current`: whether the model that labeled the sample runs now; else it comes from the cache. */
export async function showExample({ current }) {
  const [facts, photo] = await Promise.all(["json", "jpg"].map((kind) => fetch(`page/samples/photo.${kind}`).catch(() => null)));
  if (!facts?.ok || !photo?.ok) return;
  const { faces, width } = (await facts.json()).images[0];
  const picture = await createImageBitmap(await photo.blob());
  const canvas = byId("example");
  if (!canvas) return; // somebody was faster
  paint(canvas, picture, faces, width, picture.width, { bold: canvas.parentElement.clientWidth < 600 });
  picture.close();
  canvas.setAttribute("aria-label", `A sample photo with one face: ${faces.map(spoken).join(", ")}`);
  const blocks = faces.map((face, index) => {
    const block = new FaceBlock(faces.length > 1 ? `Face ${index + 1}` : "Sample", index + 1);
    block.show(face);
    if (face.explanation) attentionFigure(face.explanation).then((figure) => showAttention(block.root, figure));
    return block.root;
  });
  const note = current ? "Labeled by the model that runs here." : "Labeled earlier: the service does not respond.";
  byId("example-faces").replaceChildren(...blocks, element("li", { class: "quiet" }, note));
  canvas.hidden = byId("example-faces").hidden = false;
  byId("nobody").hidden = true;
}
