// The summary of a recorded session: seconds per expression and person, a timeline of each, and its files.

import { byId, download, element, setText, swatch } from "./dom.js";
import { DARK, LABELS, UNCERTAIN, personColor } from "./labels.js";
import { drawHistory } from "./timeline.js";

export class Summary {
  constructor() {
    this.dialog = byId("summary");
    byId("summary-close").addEventListener("click", () => this.dialog.close());
    byId("summary-csv").addEventListener("click", () => download(this.session.asCsv(), `${this.name}.csv`));
    byId("summary-json").addEventListener("click", () => download(this.session.asJson(this.about), `${this.name}.json`));
    byId("summary-video").addEventListener("click", () => download(this.video, `${this.name}.${this.video.type.split("/")[1]}`));
    this.dialog.addEventListener("close", () => (this.session = this.video = null));
  }

  /** Show a session. `about`: {model, threshold}; `video`: a blob or null. */
  show(session, about, video) {
    Object.assign(this, { session, about, video });
    this.name = `mien-session-${session.date.toISOString().slice(0, 19).replaceAll(":", "")}`;
    const people = session.summary();
    const count = `${people.length} ${people.length === 1 ? "person" : "people"}`;
    setText(byId("summary-facts"), `${session.seconds.toFixed(1)} s, ${session.frames} labeled frames, ${count}. The session exists only in this tab: save what you want to keep.`);
    byId("summary-video").hidden = !video;
    byId("summary-table").replaceChildren(...(people.length ? [head(), body(people)] : []));
    byId("summary-plots").replaceChildren(...people.map(plotOf));
    byId("summary-empty").hidden = people.length > 0;
    if (!this.dialog.open) this.dialog.showModal();
    for (const { history, canvas } of people) drawHistory(canvas, history, { from: session.startedAt, to: session.endedAt, threshold: about.threshold });
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
  const root = element("div", {}, element("h3", {}, chip, row.person), row.canvas);
  root.style.setProperty("--person", personColor(row.number));
  root.style.setProperty("--on-person", DARK);
  return root;
}
