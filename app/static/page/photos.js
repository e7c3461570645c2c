// Photos: dropped, pasted or chosen; answered one after the other; drawn here, as the service keeps nothing.

import { attentionFigure, showAttention } from "./attention.js";
import { announce, byId, download, element, setText } from "./dom.js";
import { drawFace } from "./draw.js";
import { asCsv, asJson } from "./exports.js";
import { FaceBlock } from "./faces.js";
import { spoken } from "./labels.js";

const SIDE_BY_SIDE = 2;
const PICTURE_PX = 2048;
const TRIES = 4;
const TIFF = /\.tiff?$/i;

export class Photos {
  constructor(show) {
    this.results = [];
    this.waiting = [];
    this.running = 0;
    this.pasted = 0;
    this.show = show;
    this.listen();
  }

  listen() {
    const drop = byId("drop");
    byId("files").addEventListener("change", (event) => {
      this.take([...event.target.files]);
      event.target.value = "";
    });
    for (const name of ["dragover", "dragenter"]) {
      addEventListener(name, (event) => {
        if (![...event.dataTransfer.types].includes("Files")) return;
        event.preventDefault();
        this.show();
        drop.classList.add("over");
      });
    }
    addEventListener("dragleave", (event) => event.relatedTarget ?? drop.classList.remove("over"));
    addEventListener("drop", (event) => {
      drop.classList.remove("over");
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.take([...event.dataTransfer.files]);
    });
    addEventListener("paste", (event) => this.paste(event));
    byId("json").addEventListener("click", () => download(asJson(this.results), "mien.json"));
    byId("csv").addEventListener("click", () => download(asCsv(this.results), "mien.csv"));
    byId("clear").addEventListener("click", () => this.clear());
  }

  paste(event) {
    const files = [...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith("image/"));
    if (!files.length) return;
    event.preventDefault();
    this.show();
    this.take(files.map((file) => new File([file], `pasted-${++this.pasted}.${file.type.split("/")[1]}`, { type: file.type })));
  }

  clear() {
    this.waiting = [];
    this.results = [];
    byId("results").replaceChildren();
    this.tell();
    byId("files").focus();
  }

  take(files) {
    for (const file of files) {
      const result = { name: file.name, file, done: false };
      result.root = element("li", { class: "result" }, element("div", {},
        element("h3", {}, file.name), element("p", { class: "quiet" }, "Waiting…")));
      byId("results").append(result.root);
      this.results.push(result);
      this.waiting.push(result);
    }
    this.tell();
    this.go();
  }

  go() {
    while (this.running < SIDE_BY_SIDE && this.waiting.length) {
      const result = this.waiting.shift();
      this.running++;
      this.work(result).finally(() => {
        this.running--;
        this.tell();
        this.go();
      });
    }
  }

  tell() {
    const done = this.results.filter((result) => result.done).length;
    byId("export").hidden = !this.results.length;
    const busy = done < this.results.length;
    byId("json").disabled = byId("csv").disabled = busy;
    const count = `${this.results.length} photo${this.results.length === 1 ? "" : "s"}`;
    setText(byId("progress"), !this.results.length ? "" : busy ? `${done} of ${count} done` : `${count} done`);
    if (this.results.length && !busy) announce(`${count} done. ${this.results.at(-1).summary ?? ""}`);
  }

  async work(result) {
    try {
      let picture = await readable(result.file);
      const options = { annotate: picture === null, explain: byId("attention").checked };
      result.answer = await ask(result.file, options);
      const [image] = result.answer.images;
      const drawn = image.annotated;
      delete image.annotated;
      image.name = result.name;
      if (image.error) throw image.error;
      if (!picture && drawn) picture = await fromBase64(drawn);
      this.present(result, image, picture, Boolean(drawn));
    } catch (error) {
      result.answer = undefined;
      result.error = error.detail ? error : { title: "No answer", detail: `The service did not answer (${error.message}).` };
      this.presentError(result);
    }
    result.done = true;
    result.file = undefined;
  }

  present(result, image, picture, drawn) {
    const people = image.faces.map((face, place) => {
      const block = new FaceBlock(`Face ${place + 1}`, "h4", "div");
      block.show(face);
      if (face.explanation) attentionFigure(face.explanation).then((figure) => showAttention(block.root, figure));
      return block.root;
    });
    result.summary = summaryOf(image.faces);
    const canvas = element("canvas", { class: "picture", role: "img", "aria-label": `${result.name}. ${result.summary}` });
    if (picture) paint(canvas, picture, drawn ? [] : image.faces, image.width);
    const save = element("button", {}, "Download picture");
    save.setAttribute("aria-label", `Download ${result.name} as a picture`);
    save.addEventListener("click", () => canvas.toBlob((blob) => download(blob, pictureName(result.name)), "image/jpeg", 0.92));
    const took = Math.round(result.answer.timings_ms.total);
    result.root.replaceChildren(
      element("div", {}, canvas),
      element("div", {}, element("h3", {}, result.name),
        element("p", { class: "quiet" }, `${result.summary} (${image.width} × ${image.height} px, ${took} ms)`),
        element("div", { class: "people" }, ...people),
        element("div", { class: "bar" }, save)));
  }

  presentError(result) {
    result.summary = result.error.detail;
    const again = element("button", {}, "Try again");
    const { file } = result;
    again.addEventListener("click", () => {
      Object.assign(result, { file, error: undefined, done: false });
      this.waiting.push(result);
      this.tell();
      this.go();
    });
    result.root.replaceChildren(element("div", {}, element("h3", {}, result.name),
      element("p", { class: "error" }, result.error.detail), element("div", { class: "bar" }, again)));
  }
}

function summaryOf(faces) {
  if (!faces.length) return "No face found";
  return `${faces.length} face${faces.length === 1 ? "" : "s"}: ${faces.map(spoken).join(", ")}`;
}

const pictureName = (name) => `${name.replace(/\.[^.]*$/, "")}-mien.jpg`;

/** The upright picture, or null where this browser cannot read the format; then the service draws it. */
async function readable(file) {
  if (TIFF.test(file.name)) return null;
  return createImageBitmap(file, { imageOrientation: "from-image" }).catch(() => null);
}

async function fromBase64({ base64, media_type: type }) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return createImageBitmap(new Blob([bytes], { type }));
}

function paint(canvas, picture, faces, width) {
  const shrink = Math.min(1, PICTURE_PX / Math.max(picture.width, picture.height));
  canvas.width = Math.max(1, Math.round(picture.width * shrink));
  canvas.height = Math.max(1, Math.round(picture.height * shrink));
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
  const scale = canvas.width / width;
  const unit = Math.max(canvas.width, canvas.height) / 700;
  for (const face of [...faces].reverse()) {
    const { x, y, width: wide, height } = face.box;
    drawFace(context, face, { x: x * scale, y: y * scale, width: wide * scale, height: height * scale }, { unit });
  }
}

/** Send one photo; `options` are those of the service. A service that is full says when to come back. */
export async function ask(file, options) {
  const type = file.type.startsWith("image/") ? file.type : "image/jpeg"; // the bytes decide; the header must be an image's
  for (let attempt = 1; ; attempt++) {
    const wanted = Object.keys(options).filter((name) => options[name]);
    const answer = await fetch(`v1/expressions?${wanted.map((name) => `${name}=true`).join("&")}`, {
      method: "POST", headers: { "Content-Type": type, Accept: "application/json" }, body: file,
    });
    const body = await answer.json();
    if (answer.ok) return body;
    const busy = answer.status === 429 || answer.status === 503;
    if (!busy || attempt === TRIES) throw body;
    await new Promise((done) => setTimeout(done, 1000 * (Number(answer.headers.get("Retry-After")) || attempt)));
  }
}
