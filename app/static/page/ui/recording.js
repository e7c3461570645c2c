// Recording of a session, and what was recorded before but not saved.

import { byId, clock, setText } from "./dom.js";
import { facts } from "../core/labels.js";
import { asJpeg } from "./pictures.js";
import { VideoRecorder, videoOf } from "./recorder.js";
import { Session } from "../core/session.js";
import { Summary } from "./summary.js";
import { hold, keepPart, remove, unsaved } from "./vault.js";

const KEEP_MS = 1000;

export class Recording {
  /** `compose(canvas, slots)` draws the picture with its boxes; `threshold()` is the one in use; `note(text)` shows a message. */
  constructor({ compose, threshold, note }) {
    this.compose = compose;
    this.threshold = threshold;
    this.note = note;
    this.summary = new Summary();
    byId("record").addEventListener("click", () => (this.session ? this.finish() : this.start()));
    byId("unsaved-open").addEventListener("click", async () => this.show(await unsaved()));
    byId("unsaved-delete").addEventListener("click", async () => {
      await this.remove((await unsaved())[0]?.id);
      byId("start").focus();
    });
    this.offerUnsaved();
  }

  /** Offer the newest recording that was not saved. */
  async offerUnsaved() {
    const parts = await unsaved().catch(() => []); // storage may be blocked
    byId("unsaved").hidden = !parts.length;
    const { date, seconds } = parts.at(-1) ?? {};
    if (date) setText(byId("unsaved-text"), `The recording of ${date.toLocaleString()} (${Math.round(seconds)} s) is not saved.`);
  }

  async remove(id) {
    await remove(id);
    await this.offerUnsaved();
  }

  start() {
    this.session = new Session();
    this.parts = [];
    this.video = [];
    this.faces = new Map(); // number of a person -> canvas with the face, until it is kept
    this.release = hold(this.session.date.toISOString());
    this.timer = setInterval(() => this.keep(this.session), KEEP_MS);
    this.recorder = new VideoRecorder();
    this.drawn();
    this.recorder.start((data) => this.video.push(data));
  }

  /** Keep what is new since the last part. */
  async keep(session) {
    const faces = [...this.faces].filter(([, canvas]) => canvas);
    for (const [number] of faces) this.faces.set(number, null);
    const thumbs = await Promise.all(faces.map(async ([number, canvas]) => [number, await asJpeg(canvas)]));
    const { date, rows, frames, seconds } = session;
    const from = this.parts.reduce((count, part) => count + part.rows.length, 0);
    const about = { model: facts.classifier.name, threshold: this.threshold() };
    const part = { id: date.toISOString(), date, frames, seconds, about, rows: rows.slice(from), video: this.video.splice(0), thumbs };
    this.parts.push(part);
    return keepPart(part).catch((error) => this.note(`A reload would lose this recording: ${error.message}`));
  }

  /** Add the people of a result, if a session is being recorded; `thumbOf(number)` is the canvas with the face of one. */
  add(people, now, thumbOf) {
    if (!this.session) return;
    this.session.add(people, now);
    for (const { track } of people) if (!this.faces.has(track)) this.faces.set(track, thumbOf(track));
  }

  /** Record the current picture, and show for how long. */
  drawn() {
    if (!this.session) return;
    this.compose(this.recorder.canvas, this.recorder.slots);
    this.showTime();
  }

  /** End the session, if there is one, and show its summary. */
  async finish() {
    const { session, recorder } = this;
    if (!session) return;
    this.session = null;
    clearInterval(this.timer);
    this.showTime();
    if (document.fullscreenElement) await document.exitFullscreen();
    session.seconds = (performance.now() - session.startedAt) / 1000;
    await recorder.stop();
    await this.keep(session);
    this.release();
    this.show(this.parts);
  }

  async show(parts) {
    if (!parts.length) return this.offerUnsaved(); // opened or deleted in another tab
    const [{ id, about }] = parts;
    const session = Session.of(parts);
    const video = await videoOf(parts.flatMap((part) => part.video), session.seconds);
    const thumbs = new Map(parts.flatMap((part) => part.thumbs ?? []).map(([number, blob]) => [String(number), blob]));
    const closed = (done) => (done ? this.remove(id) : this.offerUnsaved());
    this.summary.show(session, { about, video, thumbs, closed });
  }

  showTime() {
    const seconds = this.session && (performance.now() - this.session.startedAt) / 1000;
    setText(byId("record-text"), this.session ? `Finish ${clock(seconds)}` : "Record");
    byId("record").setAttribute("aria-pressed", String(Boolean(this.session)));
  }
}
