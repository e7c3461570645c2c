// The tools beside the live picture: attention map, snapshot, fullscreen, and recording a session.

import { attentionFigure } from "./attention.js";
import { byId, clock, download, setText } from "./dom.js";
import { asJpeg } from "./pictures.js";
import { VideoRecorder, videoOf } from "./recorder.js";
import { Session } from "../core/session.js";
import { Summary } from "./summary.js";
import { iou } from "../core/tags.js";
import { hold, keepPart, remove, unsaved } from "./vault.js";

const KEEP_MS = 1000;

export class Tools {
  constructor(live) {
    this.live = live;
    this.summary = new Summary();
    const click = (id, act) => byId(id).addEventListener("click", () => act.call(this));
    click("look", this.showAttention);
    click("snapshot", this.snapshot);
    click("fullscreen", this.toggleFullscreen);
    click("record", () => (this.session ? this.finish() : this.record()));
    click("unsaved-open", async () => this.show(await unsaved()));
    click("unsaved-delete", async () => {
      await this.remove((await unsaved())[0]?.id);
      byId("start").focus();
    });
    byId("fullscreen").hidden = !document.fullscreenEnabled; // not on iPhones
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

  /** Request the maps of the newest frame, and show each on the card of its person. */
  async showAttention() {
    const { live } = this;
    if (!live.last || byId("look").ariaDisabled === "true") return;
    const { frame, source } = live.last;
    const takenAt = new Date();
    byId("look").ariaDisabled = "true"; // `disabled` would lose the focus
    try {
      const { images: [{ faces }] } = await live.labeler.label(new Blob([frame], { type: "image/jpeg" }), { explain: true });
      for (const face of faces) {
        const figure = await attentionFigure(face.explanation, takenAt);
        const track = live.motion.nearest((box) => iou(box, face.box));
        if (track !== undefined && source === live.source) live.people.attach(track, figure);
      }
      live.stage.note(faces.length ? "Each card shows where the model looked" : "No face in this frame");
    } catch (error) {
      live.stage.note(`No attention map: ${error.detail ?? error.message}`);
    } finally {
      byId("look").ariaDisabled = "false";
    }
  }

  snapshot() {
    const canvas = document.createElement("canvas");
    this.compose(canvas, this.live.motion.at(performance.now()), new Map());
    const name = `mien-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.jpg`;
    canvas.toBlob((blob) => download(blob, name), "image/jpeg", 0.92);
    this.live.stage.note("Snapshot saved to your downloads");
  }

  compose(canvas, shown, slots) {
    this.live.stage.compose(canvas, shown, this.live.frameSize, this.live.settings, slots);
  }

  toggleFullscreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else byId("view").requestFullscreen().catch((error) => this.live.stage.note(`No fullscreen: ${error.message}`));
  }

  record() {
    this.session = new Session();
    this.parts = [];
    this.video = [];
    this.faces = new Map(); // number of a person -> canvas with the face, until it is kept
    this.release = hold(this.session.date.toISOString());
    this.timer = setInterval(() => this.keep(this.session), KEEP_MS);
    this.recorder = new VideoRecorder();
    this.compose(this.recorder.canvas, this.live.motion.at(performance.now()), this.recorder.slots);
    this.recorder.start((data) => this.video.push(data));
    this.showRecording();
  }

  /** Keep what is new since the last part. */
  async keep(session) {
    const faces = [...this.faces].filter(([, canvas]) => canvas);
    for (const [number] of faces) this.faces.set(number, null);
    const thumbs = await Promise.all(faces.map(async ([number, canvas]) => [number, await asJpeg(canvas)]));
    const { date, rows, frames, seconds } = session;
    const from = this.parts.reduce((count, part) => count + part.rows.length, 0);
    const about = { model: this.live.model, threshold: this.live.settings.threshold };
    const part = { id: date.toISOString(), date, frames, seconds, about, rows: rows.slice(from), video: this.video.splice(0), thumbs };
    this.parts.push(part);
    return keepPart(part).catch((error) => this.live.stage.note(`A reload would lose this recording: ${error.message}`));
  }

  /** Add the faces of a result to the session, if one is being recorded. */
  answered(faces, now) {
    if (!this.session) return;
    this.session.add(faces, now);
    for (const { track } of faces) if (!this.faces.has(track)) this.faces.set(track, this.live.people.people.get(track).thumb);
  }

  /** Record the current picture with its boxes. */
  drawn(shown) {
    if (!this.session) return;
    this.compose(this.recorder.canvas, shown, this.recorder.slots);
    this.showRecording();
  }

  /** End the session, if there is one, and show its summary. */
  async finish() {
    const { session, recorder } = this;
    if (!session) return;
    this.session = null;
    clearInterval(this.timer);
    this.showRecording();
    if (document.fullscreenElement) await document.exitFullscreen();
    session.seconds = (performance.now() - session.startedAt) / 1000;
    await recorder.stop();
    await this.keep(session);
    this.release();
    this.show(this.parts);
  }

  show(parts) {
    if (!parts.length) return this.offerUnsaved(); // opened or deleted in another tab
    const [{ id, about }] = parts;
    const thumbs = new Map(parts.flatMap((part) => part.thumbs ?? []).map(([number, blob]) => [String(number), blob]));
    const closed = (done) => (done ? this.remove(id) : this.offerUnsaved());
    this.summary.show(Session.of(parts), { about, video: videoOf(parts.flatMap(({ video }) => video)), thumbs, closed });
  }

  showRecording() {
    const seconds = this.session && (performance.now() - this.session.startedAt) / 1000;
    setText(byId("record-text"), this.session ? `Finish ${clock(seconds)}` : "Record");
    byId("record").setAttribute("aria-pressed", String(Boolean(this.session)));
  }
}
