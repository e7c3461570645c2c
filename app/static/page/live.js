// The live view: a camera or a video plays on the stage, its frames go to a labeler as fast as that is (socket.js or
// local/labeler.js), and the people of each result (scene.js) are drawn over the picture and shown on cards.

import { Camera, Pace, SourceError, offerCameras, sampleClip } from "./camera.js";
import { announce, byId, download, resize } from "./dom.js";
import { drawFaces, placed } from "./draw.js";
import { Announcer, colorOf } from "./labels.js";
import { People } from "./people.js";
import { isFaithful } from "./pixels.js";
import { Scene } from "./scene.js";
import { choice, keep } from "./settings.js";
import { Stage } from "./stage.js";

const DRAW_MS = 25; // cameras do not have more frames
const NOBODY_MS = 1500;
const HIDDEN_PIXELS = [
  "hidden",
  "Your browser hides the picture from this page",
  "Allow canvas data for this site with the icon in the address bar, then try again; or choose photos.",
];

export class Live {
  source = null; scene = new Scene(true, 0);

  /** `labeler`: the service, or that of local mode; `settings`: {mirror, threshold}. */
  constructor(labeler, settings) {
    this.settings = settings;
    this.video = byId("video");
    this.overlay = byId("overlay");
    this.stage = new Stage(this.video);
    this.canvas = document.createElement("canvas"); // of the frame to label
    this.cameraId = choice("camera");
    this.observers = []; // {people(faces, now, picture), drawn(now), stop()}: a recording, a round
    this.release();
    this.use(labeler);
    this.listen();
  }

  listen() {
    const click = (id, act) => byId(id).addEventListener("click", act);
    click("start", () => {
      if (this.stage.state === "missing") this.chooseCamera(null);
      this.play(new Camera(this.cameraId));
    });
    click("sample-clip", () => this.play(sampleClip()));
    for (const id of ["stop", "cancel"]) click(id, () => this.stop());
    click("pause", () => this.pause(this.stage.state !== "paused"));
    click("snapshot", () => this.snapshot());
    click("fullscreen", () => (document.fullscreenElement ? document.exitFullscreen()
      : byId("view").requestFullscreen().catch((error) => this.stage.note(`No fullscreen: ${error.message}`))));
    click("flip", () => {
      byId("camera").selectedIndex = (byId("camera").selectedIndex + 1) % byId("camera").length;
      byId("camera").dispatchEvent(new Event("change"));
    });
    byId("camera").addEventListener("change", (event) => {
      this.chooseCamera(event.target.value);
      this.play(new Camera(this.cameraId));
    });
    byId("fullscreen").hidden = !document.fullscreenEnabled; // not on iPhones
    byId("seek").addEventListener("input", (event) => {
      this.video.currentTime = event.target.valueAsNumber;
      this.shown = [];
      this.redraw();
    });
    document.addEventListener("visibilitychange", () => this.attend());
    new ResizeObserver(() => this.redraw()).observe(this.overlay);
    navigator.mediaDevices?.addEventListener("devicechange", () => offerCameras(this.cameraId));
    // The browser may show this very page again, after Back.
    addEventListener("pagehide", () => this.source && this.stop());
  }

  // The source

  /** Use this camera from now on, and no other; null for any. */
  chooseCamera(deviceId) {
    this.cameraId = deviceId;
    keep("camera", deviceId, { shared: false });
  }

  /** Show a camera or a clip. */
  async play(source) {
    this.release();
    this.source = source;
    const isCurrent = () => source === this.source;
    const [title, text] = source.waiting;
    this.stage.enter(source.isCamera ? "asking" : "loading", { title, text, button: "", choices: false });
    try {
      await source.attach(this.video, {
        isCurrent,
        lost: (error) => isCurrent() && this.fail(error),
        troubled: () => isCurrent() && this.stage.badge(source.trouble),
        ended: () => this.pause(true, "The video has ended"),
      });
      if (!isFaithful(document.createElement("canvas").getContext("2d"))) throw new SourceError(...HIDDEN_PIXELS);
    } catch (error) {
      if (isCurrent()) this.fail(error);
      return;
    }
    if (!isCurrent()) return;
    this.cameraId = source.isCamera ? source.deviceId : this.cameraId;
    this.scene = new Scene(source.isCamera, performance.now());
    this.stage.enter("live");
    announce(`${source.name} on`);
    byId("pause").focus({ preventScroll: true });
    this.apply();
    this.attend();
    this.look(source);
    const draw = (now) => {
      if (!isCurrent()) return;
      if (this.stage.state === "live" && now - this.drawnAt > DRAW_MS) this.draw(now);
      requestAnimationFrame(draw);
    };
    requestAnimationFrame(draw);
  }

  fail(error) {
    this.release();
    const { kind, title, text, button } =
      error instanceof SourceError ? error : new SourceError("failed", "The camera did not start", error.message);
    this.stage.enter(kind, { title, text, button, error: true });
  }

  pause(paused, why = "Paused: nothing is sent") {
    this.stage.enter(paused ? "paused" : "live");
    this.stage.badge(paused ? why : "");
    if (paused) this.video.pause();
    else this.video.play();
    this.attend();
  }

  stop() {
    const title = this.source.isCamera ? "Camera off" : "Video stopped";
    this.release();
    this.stage.enter("idle", { title, text: "Nothing is being sent." });
    byId("start").focus();
  }

  /** Before another source, and after the last: forget everything about the people. */
  release() {
    for (const observer of this.observers) observer.stop();
    this.stream?.close();
    this.source?.release(this.video);
    this.scene.close();
    this.source = null;
    this.people = new People(byId("faces"), byId("nobody"));
    this.announcer = new Announcer();
    this.shown = [];
    this.slowFrame = null;
    this.slots = new Map();
    this.problem = "";
    this.drawnAt = 0;
    this.pace = new Pace();
    this.seenAt = Infinity;
    this.stage.badge("");
    this.stage.root.style.removeProperty("--tint");
    this.overlay.getContext("2d").clearRect(0, 0, this.overlay.width, this.overlay.height);
  }

  // Frames and their results

  /** Label with another labeler from now on. */
  use(labeler) {
    this.stream?.close();
    this.isLocal = labeler.local;
    this.stream = labeler.stream();
    this.attend();
  }

  /** Use the settings. */
  apply() {
    this.mirrored = this.settings.mirror && Boolean(this.source?.mirrored);
    this.video.classList.toggle("mirrored", this.mirrored);
    this.redraw();
  }

  /** Send frames only while the view is visible and not paused. */
  attend() {
    const wanted = this.stage.state === "live" && !document.hidden && !byId("panel-live").hidden;
    if (!wanted) return this.stream.close();
    if (!this.stream.wanted) this.scene.at = performance.now();
    this.stream.open();
  }

  /** Look at each frame that the video shows. */
  look(source) {
    if (source !== this.source) return;
    this.takeFrame();
    const again = () => this.look(source);
    if (this.video.requestVideoFrameCallback) this.video.requestVideoFrameCallback(again);
    else requestAnimationFrame(again);
  }

  async takeFrame() {
    const at = performance.now();
    const { stream, source, canvas } = this;
    const { videoWidth, videoHeight } = this.video;
    if (!videoWidth || !this.pace.isDue(at) || !stream.ready(at)) return;
    this.pace.took(at);
    const scale = Math.min(1, stream.framePx / Math.max(videoWidth, videoHeight));
    resize(canvas, Math.round(videoWidth * scale), Math.round(videoHeight * scale));
    canvas.getContext("2d").drawImage(this.video, 0, 0, canvas.width, canvas.height);
    const [frame, result] = await Promise.all([createImageBitmap(canvas), stream.label(canvas)]);
    if (result && source === this.source && stream === this.stream && !result.error)
      return this.take(result, frame, at);
    frame.close();
    if (result?.error && source === this.source) this.problem = `Frames are not labeled: ${result.error.detail}`;
  }

  /** Take over the result of a frame that was taken at `at`. */
  take(result, frame, at) {
    this.scene.add(result, frame, at, this.settings.threshold);
    const [now, { people: faces }] = [performance.now(), this.scene];
    this.problem = "";
    if (faces.length || this.seenAt === Infinity) this.seenAt = now;
    this.people.update(faces, now, frame);
    for (const observer of this.observers) observer.people(faces, now, frame);
    this.stage.root.style.setProperty("--tint", faces.length === 1 ? colorOf(faces[0].label) : "transparent");
    const news = this.announcer.textOf(faces, now);
    if (news) announce(news);
  }

  // The picture

  draw(now) {
    this.drawnAt = now;
    const { scene } = this;
    const freshness = scene.freshness(now);
    Object.assign(this, { shown: scene.shown(now), slowFrame: scene.slowFrame(now) });
    this.drawOverlay();
    this.people.refresh(now, this.settings.threshold, freshness);
    for (const observer of this.observers) observer.drawn?.(now);
    if (!freshness) this.stage.root.style.removeProperty("--tint");
    const waiting = freshness ? "" : `Waiting for the ${this.isLocal ? "labels" : "service"}`;
    const empty = !scene.people.length && now - this.seenAt > NOBODY_MS ? "No face in view" : "";
    this.stage.badge(this.stream.message || this.source.trouble || this.problem || waiting || empty);
  }

  /** A paused picture is drawn again only when its size or the settings change. */
  redraw() {
    if (this.stage.state === "paused") this.drawOverlay();
  }

  /** Draw the faces over the picture, which is fitted in as `object-fit: contain`. */
  drawOverlay() {
    const { overlay, scene: { size } } = this;
    const ratio = devicePixelRatio || 1;
    resize(overlay, Math.round(overlay.clientWidth * ratio), Math.round(overlay.clientHeight * ratio));
    overlay.getContext("2d").clearRect(0, 0, overlay.width, overlay.height);
    const scale = Math.min(overlay.width / size.width, overlay.height / size.height);
    const [width, height] = [size.width * scale, size.height * scale];
    const area = { x: (overlay.width - width) / 2, y: (overlay.height - height) / 2, width, height };
    this.drawOn(overlay, this.slowFrame, area, { unit: Math.max(ratio, width / 900), area, slots: this.slots });
  }

  /** Draw the picture with its faces, as displayed but without margins, on a canvas of the size of the video. */
  compose(canvas) {
    const { videoWidth: width, videoHeight: height } = this.video;
    resize(canvas, width, height);
    const area = { x: 0, y: 0, width, height };
    this.drawOn(canvas, this.slowFrame ?? this.video, area, {
      unit: Math.max(1, width / 700),
      area,
      slots: new Map(this.slots),
    });
  }

  drawOn(canvas, picture, area, how) {
    const context = canvas.getContext("2d");
    if (picture) {
      context.save();
      if (this.mirrored) context.transform(-1, 0, 0, 1, 2 * area.x + area.width, 0);
      context.drawImage(picture, area.x, area.y, area.width, area.height);
      context.restore();
    }
    drawFaces(context, placed(this.shown, this.scene.size, area, this.mirrored), how);
  }

  snapshot() {
    const canvas = document.createElement("canvas");
    this.compose(canvas);
    const name = `mien-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.jpg`;
    canvas.toBlob((blob) => download(blob, name), "image/jpeg", 0.92);
    this.stage.note("Snapshot saved to your downloads");
  }
}
