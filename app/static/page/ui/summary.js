// The summary of a recorded session: the video, each person's share of expressions and timeline, and its files.

import { UNCERTAIN } from "../core/labels.js";
import { byId, clock, download, element, setText } from "./dom.js";
import { plotColor } from "../core/plot.js";
import { drawHistory } from "./timeline.js";

const TICKS = 4;

export class Summary {
  constructor() {
    this.dialog = byId("summary");
    this.about = null;
    this.closed = null;
    this.player = byId("summary-player");
    byId("summary-close").addEventListener("click", () => this.dialog.close());
    byId("summary-delete").addEventListener("click", () => {
      this.done = true;
      this.dialog.close();
    });
    this.save("csv", () => [this.session.asCsv(), "csv"]);
    this.save("json", () => [this.session.asJson(this.about), "json"]);
    this.save("video", () => [this.video, this.video.type.split("/")[1]]);
    this.player.addEventListener("timeupdate", () => this.showPlayhead());
    this.dialog.addEventListener("close", () => {
      URL.revokeObjectURL(this.player.src);
      this.player.removeAttribute("src");
      this.closed(this.done);
      this.session = this.video = null;
    });
  }

  save(kind, file) {
    byId(`summary-${kind}`).addEventListener("click", () => {
      const [blob, ending] = file();
      download(blob, `${this.name}.${ending}`);
      this.done = true;
      byId("summary-files").open = false;
    });
  }

  /**
   * Show a session. `about`: {model, threshold}; `video`: a blob or null; `thumbs`: a picture of each person, a blob by number;
   * `closed(done)`: whether it was saved or deleted.
   */
  show(session, { about, video, thumbs, closed }) {
    Object.assign(this, { session, about, video, closed, done: false });
    this.name = `mien-session-${session.date.toISOString().slice(0, 19).replaceAll(":", "")}`;
    const people = session.summary();
    const count = `${people.length} ${people.length === 1 ? "person" : "people"}`;
    setText(byId("summary-facts"), `${session.date.toLocaleString()}: ${clock(session.seconds)}, ${count}. It stays in this browser until you save or delete it.`);
    byId("summary-video").hidden = this.player.hidden = !video;
    if (video) this.player.src = URL.createObjectURL(video);
    const rows = people.map((person) => this.row(person, thumbs.get(person.number)));
    byId("summary-people").replaceChildren(...rows.map(({ root }) => root));
    byId("summary-empty").hidden = people.length > 0;
    byId("summary-axis").hidden = !people.length;
    const ticks = Array.from({ length: TICKS + 1 }, (_, index) => element("span", {}, clock((session.seconds * index) / TICKS)));
    byId("summary-axis").replaceChildren(...ticks);
    if (!this.dialog.open) this.dialog.showModal();
    rows.forEach(({ canvas }, index) => drawHistory(canvas, people[index].history, { from: 0, to: 1000 * session.seconds, threshold: about.threshold }));
    this.showPlayhead();
  }

  row({ person, number, history, seconds, total }, thumb) {
    const shares = Object.entries(seconds).filter(([, value]) => value > 0).sort(([, one], [, other]) => other - one);
    const words = shares.map(([name, value]) => `${name} ${value.toFixed(1)} s`).join(", ");
    const picture = thumb ? [element("img", { class: "thumb", src: URL.createObjectURL(thumb), alt: "" })] : [];
    const name = element("h3", {}, element("span", { class: "chip", "aria-hidden": "true" }, number), person);
    const bar = element("div", { class: "share", "aria-hidden": "true" }, ...shares.map(([label, value]) => shareOf(label, value, total)));
    const text = element("p", { class: "quiet" }, `${words}; in view for ${total.toFixed(1)} s`);
    const canvas = element("canvas", { class: "timeline", role: "img", "aria-label": `Timeline of ${person}` });
    canvas.addEventListener("pointerdown", ({ offsetX }) => this.jump((this.session.seconds * offsetX) / canvas.clientWidth));
    const episodes = history.episodes(1000 * this.session.seconds).map((episode) => this.episode(episode));
    const plot = element("div", { class: "timeline-box" }, canvas, ...episodes);
    return { canvas, root: element("section", {}, element("div", { class: "person" }, ...picture, element("div", {}, name, bar, text)), plot) };
  }

  /** A mark above the timeline, which plays the recording from there. */
  episode({ label, from, to }) {
    const words = `${label} from ${clock(from / 1000)}, ${((to - from) / 1000).toFixed(1)} s`;
    const mark = element("button", { class: "episode", title: words, "aria-label": words, "data-label": label });
    const percentOf = (ms) => `${ms / (10 * this.session.seconds)}%`;
    Object.assign(mark.style, { left: percentOf(from), width: percentOf(to - from) });
    mark.addEventListener("click", () => this.jump(from / 1000));
    return mark;
  }

  jump(seconds) {
    if (this.video) this.player.currentTime = seconds;
  }

  /** Draw a line through all timelines where the recording plays. */
  showPlayhead() {
    const share = this.video && this.session ? this.player.currentTime / this.session.seconds : -1;
    byId("summary-people").style.setProperty("--playhead", `${100 * Math.min(share, 1)}%`);
  }
}

function shareOf(name, value, total) {
  const part = element("span", { class: name === UNCERTAIN ? "uncertain" : "", title: `${name} ${value.toFixed(1)} s` });
  Object.assign(part.style, { width: `${(100 * value) / total}%`, backgroundColor: name === UNCERTAIN ? "" : plotColor(name) });
  return part;
}
