// The summary of a recorded session: seconds per expression and person, a timeline of each, and its files.

import { byId, download, element, setText, swatch } from "./dom.js";
import { LABELS, UNCERTAIN } from "../core/labels.js";
import { drawHistory } from "./timeline.js";

export class Summary {
  constructor() {
    this.dialog = byId("summary");
    byId("summary-close").addEventListener("click", () => this.dialog.close());
    byId("summary-delete").addEventListener("click", () => {
      this.done = true;
      this.dialog.close();
    });
    this.save("csv", () => [this.session.asCsv(), "csv"]);
    this.save("json", () => [this.session.asJson(this.about), "json"]);
    this.save("video", () => [this.video, this.video.type.split("/")[1]]);
    this.dialog.addEventListener("close", () => {
      this.closed(this.done);
      this.session = this.video = null;
    });
  }

  save(kind, file) {
    byId(`summary-${kind}`).addEventListener("click", () => {
      const [blob, ending] = file();
      download(blob, `${this.name}.${ending}`);
      this.done = true;
    });
  }

  /** Show a session. `about`: {model, threshold}; `video`: a blob or null; `closed(done)`: whether it was saved or deleted. */
  show(session, about, video, closed) {
    Object.assign(this, { session, about, video, closed, done: false });
    this.name = `mien-session-${session.date.toISOString().slice(0, 19).replaceAll(":", "")}`;
    const people = session.summary();
    const count = `${people.length} ${people.length === 1 ? "person" : "people"}`;
    setText(byId("summary-facts"), `${session.seconds.toFixed(1)} s, ${session.frames} labeled frames, ${count}. It stays in this browser until you save or delete it.`);
    byId("summary-video").hidden = !video;
    byId("summary-table").replaceChildren(...(people.length ? [head(), body(people)] : []));
    byId("summary-plots").replaceChildren(...people.map(plotOf));
    byId("summary-empty").hidden = people.length > 0;
    if (!this.dialog.open) this.dialog.showModal();
    for (const { history, canvas } of people) drawHistory(canvas, history, { from: 0, to: 1000 * session.seconds, threshold: about.threshold });
  }
}

function head() {
  const names = [...LABELS, UNCERTAIN, "in view"].map((name) => element("th", { scope: "col" }, ...color(name), name));
  return element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Seconds"), ...names));
}

const color = (name) => (LABELS.includes(name) ? [swatch(name), " "] : []);

function body(people) {
  return element("tbody", {}, ...people.map(({ person, seconds, total }) => element("tr", {}, element("th", { scope: "row" }, person),
    ...[...Object.values(seconds), total].map((value) => element("td", { class: value ? "" : "quiet" }, value.toFixed(1))))));
}

function plotOf(row) {
  row.canvas = element("canvas", { class: "timeline", role: "img", "aria-label": `Timeline of ${row.person}` });
  const chip = element("span", { class: "chip", "aria-hidden": "true" }, String(row.number));
  return element("div", {}, element("h3", {}, chip, row.person), row.canvas);
}
