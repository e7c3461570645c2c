// Dialog with one photo: its faces, all expressions of each, and the picture as a download.

import { byId, download, element, setText } from "./dom.js";
import { FaceBlock } from "./face.js";
import { fromBase64, paint, readable } from "./pictures.js";

const PICTURE_PX = 2048;
const FEW_FACES = 2; // are shown with all expressions at once
const WHERE = "Where the model looked: a hint, not a proof";

export class Detail {
  /** `among()`: the photos to step through. */
  constructor(among) {
    this.among = among;
    this.dialog = byId("detail");
    byId("detail-close").addEventListener("click", () => this.dialog.close());
    byId("detail-before").addEventListener("click", () => this.step(-1));
    byId("detail-after").addEventListener("click", () => this.step(1));
    byId("detail-save").addEventListener("click", () => this.save());
    byId("detail-larger").addEventListener("click", () => this.zoom(!this.zoomed));
    byId("detail-picture").addEventListener("click", (event) => this.zoom(!this.zoomed, event));
    this.dialog.addEventListener("click", (event) => event.target === this.dialog && this.dialog.close());
    this.dialog.addEventListener("keydown", (event) => {
      if (this.zoomed && byId("detail-zoom").contains(event.target)) return; // the arrows scroll
      if (event.key === "ArrowLeft") this.step(-1);
      if (event.key === "ArrowRight") this.step(1);
    });
  }

  async open(result) {
    this.result = result;
    const { image } = result;
    setText(byId("detail-title"), result.name);
    setText(byId("detail-facts"), `${result.summary.split(":")[0]}, ${image.width} × ${image.height} px`);
    const focused = document.activeElement; // some browsers move the focus from a disabled button to the body at once
    this.showArrows();
    byId("detail-save").disabled = true; // the canvas still has the previous photo
    if (focused.disabled) byId("detail-zoom").focus(); // else the arrow keys would not reach the dialog
    byId("detail-faces").replaceChildren(...image.faces.map(faceOf));
    this.zoom(false);
    if (!this.dialog.open) this.dialog.showModal();
    await this.draw(result);
  }

  /** Enable the arrows that lead to a photo; more can have been labeled meanwhile. */
  showArrows() {
    const photos = this.among();
    const index = photos.indexOf(this.result);
    byId("detail-before").disabled = index <= 0;
    byId("detail-after").disabled = index < 0 || index >= photos.length - 1;
  }

  /** Show the picture larger than the dialog, to scroll in, around the point of a click; or fit it in again. */
  zoom(zoomed, point) {
    const [frame, canvas] = [byId("detail-zoom"), byId("detail-picture")];
    const before = canvas.getBoundingClientRect();
    const [x, y] = point
      ? [(point.clientX - before.left) / before.width, (point.clientY - before.top) / before.height]
      : [0.5, 0.5];
    this.zoomed = zoomed;
    frame.classList.toggle("zoomed", zoomed);
    byId("detail-larger").setAttribute("aria-pressed", String(zoomed));
    frame.scrollTo(x * canvas.clientWidth - frame.clientWidth / 2, y * canvas.clientHeight - frame.clientHeight / 2);
  }

  async draw(result) {
    const canvas = byId("detail-picture");
    canvas.setAttribute("aria-label", `${result.name}. ${result.summary}`);
    const picture = await readable(result.picture);
    if (picture && result === this.result) {
      paint(canvas, picture, result.drawn, result.image.width, PICTURE_PX);
      byId("detail-save").disabled = false;
    }
    picture?.close();
  }

  step(by) {
    const photos = this.among();
    const next = photos[photos.indexOf(this.result) + by];
    if (next) this.open(next);
  }

  save() {
    const name = `${this.result.name.replace(/\.[^.]*$/, "")}-mien.jpg`;
    byId("detail-picture").toBlob((blob) => download(blob, name), "image/jpeg", 0.92);
  }
}

/** Show the attention map of a face below its bars: a small picture, which the service has drawn. */
async function showAttention(block, { overlay }) {
  const picture = await createImageBitmap(fromBase64(overlay));
  const canvas = element("canvas", { width: picture.width, height: picture.height, role: "img", "aria-label": WHERE });
  canvas.getContext("2d").drawImage(picture, 0, 0);
  picture.close();
  block.bars.after(element("figure", { class: "attention" }, canvas, element("figcaption", { class: "quiet" }, WHERE)));
}

function faceOf(face, index, faces) {
  const block = new FaceBlock(`Face ${index + 1}`, index + 1, { open: faces.length <= FEW_FACES });
  block.show(face);
  if (face.explanation) showAttention(block, face.explanation);
  return block.root;
}
