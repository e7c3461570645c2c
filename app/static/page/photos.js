// Photos: dropped, pasted or chosen; labeled two at a time; shown as tiles that can be opened.

import { Detail } from "./detail.js";
import { announce, byId, element, setText } from "./dom.js";
import { UNCERTAIN, brief, spoken } from "./labels.js";
import { asJpeg, fromBase64, isVideo, paint, readable, sendable } from "./pictures.js";

const SIDE_BY_SIDE = 2;
const TILE_PX = 640;
const MOST_LABELS = 3; // on a tile
const AGAIN = [408, 429, 500, 503]; // other refusals are final for a file

export class Photos {
  /**
   * `labeler`: the service, or the labeler of local mode; `show()` selects the tab; `playVideo(file, others)` plays a
   * video; `others`: number of those that do not play.
   */
  constructor(labeler, { show, playVideo }) {
    this.labeler = labeler;
    this.show = show;
    this.playVideo = playVideo;
    this.results = [];
    this.waiting = [];
    this.running = 0;
    this.pasted = 0;
    this.detail = new Detail(() => this.results.filter((result) => result.answer));
    this.listen();
  }

  listen() {
    byId("files").addEventListener("change", (event) => {
      this.take([...event.target.files]);
      event.target.value = "";
    });
    byId("choose").addEventListener("click", () => byId("files").click());
    byId("try-samples").addEventListener("click", () => this.takeSamples());
    for (const name of ["dragover", "dragenter"]) {
      addEventListener(name, (event) => {
        if (![...event.dataTransfer.types].includes("Files")) return;
        event.preventDefault();
        document.body.classList.add("dropping");
      });
    }
    addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("dropping"));
    addEventListener("drop", (event) => {
      document.body.classList.remove("dropping");
      if (!event.dataTransfer.files.length) return;
      event.preventDefault();
      this.take([...event.dataTransfer.files]);
    });
    addEventListener("paste", (event) => this.paste(event));
    byId("clear").addEventListener("click", () => this.clear());
  }

  paste(event) {
    const files = [...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith("image/"));
    if (!files.length) return;
    event.preventDefault();
    this.take(
      files.map((file) => new File([file], `pasted-${++this.pasted}.${file.type.split("/")[1]}`, { type: file.type })),
    );
  }

  async takeSamples() {
    const fetched = [...byId("try-samples").querySelectorAll("img")].map(async ({ src }) => {
      const blob = await (await fetch(src)).blob();
      return new File([blob], src.split("/").at(-1), { type: blob.type });
    });
    this.take(await Promise.all(fetched));
  }

  /** Remove all photos. */
  clear() {
    announce(`${countOf(this.results)} removed.`);
    this.waiting = [];
    this.results = [];
    byId("results").replaceChildren();
    this.showProgress();
    byId("files").focus();
  }

  take(files) {
    this.detail.dialog.close();
    const videos = files.filter(isVideo);
    const photos = files.filter((file) => !isVideo(file));
    if (videos.length) this.playVideo(videos[0], videos.length - 1); // photos are labeled meanwhile
    else if (photos.length) this.show();
    for (const file of photos) {
      const result = { name: file.name, file, done: false, root: element("li", { class: "tile", tabindex: -1 }) };
      presentNote(result, "Waiting…", true);
      byId("results").append(result.root);
      this.results.push(result);
      this.waiting.push(result);
    }
    this.showProgress();
    this.startNext();
  }

  startNext() {
    while (this.running < SIDE_BY_SIDE && this.waiting.length) {
      this.running++;
      this.work(this.waiting.shift()).finally(() => {
        this.running--;
        this.showProgress();
        this.startNext();
      });
    }
  }

  showProgress() {
    const done = this.results.filter((result) => result.done).length;
    const some = this.results.length > 0;
    byId("toolbar").hidden = !some;
    byId("drop").classList.toggle("compact", some);
    const busy = done < this.results.length;
    const count = countOf(this.results);
    setText(byId("progress"), !some ? "" : busy ? `${done} of ${count} done` : `${count} done`);
    this.detail.showArrows();
    if (some && !busy) announce(`${count} done. ${this.results.at(-1).summary ?? ""}`);
  }

  async work(result) {
    presentNote(result, "Labeling…", true);
    const { labeler } = this;
    let picture = null;
    try {
      picture = await readable(result.file);
      const file = await sendable(result.file, picture, labeler.local);
      const answer = await labeler.label(file, { annotate: picture === null, explain: byId("attention").checked });
      await this.keep(result, answer, picture);
    } catch (error) {
      result.error = error.detail
        ? error
        : { title: "No response", detail: `The service did not respond (${error.message}).`, again: true };
      this.presentError(result);
    } finally {
      picture?.close();
    }
    result.done = true;
  }

  /** Keep the response and a picture that this browser can display, and show both. */
  async keep(result, answer, picture) {
    const [image] = answer.images;
    if (image.error) throw image.error;
    const { annotated } = image;
    delete image.annotated;
    result.picture = annotated ? fromBase64(annotated) : result.file;
    result.drawn = annotated ? [] : image.faces;
    const bitmap = picture ?? (await readable(result.picture));
    Object.assign(result, { answer, image, error: undefined, summary: summaryOf(image.faces) });
    const canvas = element("canvas");
    paint(canvas, bitmap, result.drawn, image.width, TILE_PX, { bold: true });
    bitmap.close();
    // The canvas has a megabyte.
    const tile = element("img", { src: URL.createObjectURL(await asJpeg(canvas)), alt: "" });
    await tile.decode();
    URL.revokeObjectURL(tile.src);
    this.present(result, tile);
  }

  present(result, tile) {
    const open = element(
      "button",
      { class: "open", "aria-label": `${result.name}. ${result.summary}. Show details` },
      tile,
    );
    open.addEventListener("click", () => this.detail.open(result));
    fill(
      result.root,
      open,
      element("h3", {}, result.name),
      element("p", { class: "labels" }, ...labelsOf(result.image.faces)),
    );
  }

  presentError(result) {
    result.summary = result.error.detail;
    presentNote(result, result.error.detail, false);
    const { status, again: temporary } = result.error;
    if (!temporary && !AGAIN.includes(status)) return;
    const again = element("button", { "aria-label": `Try ${result.name} again` }, "Try again");
    again.addEventListener("click", () => {
      Object.assign(result, { error: undefined, done: false });
      presentNote(result, "Waiting…", true);
      this.waiting.push(result);
      this.showProgress();
      this.startNext();
    });
    result.root.append(again);
  }
}

const countOf = ({ length }) => `${length} photo${length === 1 ? "" : "s"}`;

function presentNote(result, text, waiting) {
  const blank = element("div", { class: `blank${waiting ? " waiting" : ""}`, "aria-hidden": "true" });
  fill(result.root, blank, element("h3", {}, result.name), element("p", { class: waiting ? "quiet" : "error" }, text));
}

/** Replace the content of a tile; a focus in it goes to its button, or to the tile. */
function fill(root, ...content) {
  const hadFocus = root.contains(document.activeElement);
  root.replaceChildren(...content);
  if (hadFocus) (root.querySelector("button") ?? root).focus();
}

/** The label of one face, or the number of faces with each of the most frequent labels. */
function labelsOf(faces) {
  if (!faces.length) return [element("span", { class: "quiet" }, "No face found")];
  const counts = new Map();
  for (const face of faces) {
    const name = face.uncertain ? UNCERTAIN : face.label;
    counts.set(name, (counts.get(name) ?? 0) + 1);
  }
  const ordered = [...counts].sort(([, one], [, other]) => other - one);
  const shown = ordered.length > MOST_LABELS ? ordered.slice(0, MOST_LABELS - 1) : ordered;
  const others = faces.length - shown.reduce((sum, [, count]) => sum + count, 0);
  const chips = shown.map(([name, count]) => element("span", {
    class: `face-label${name === UNCERTAIN ? " uncertain" : ""}`, "data-label": name,
  }, faces.length === 1 ? brief(faces[0]) : `${name} × ${count}`));
  return others ? [...chips, element("span", { class: "quiet" }, `${others} others`)] : chips;
}

function summaryOf(faces) {
  if (!faces.length) return "No face found";
  return `${faces.length} face${faces.length === 1 ? "" : "s"}: ${faces.map(spoken).join(", ")}`;
}
