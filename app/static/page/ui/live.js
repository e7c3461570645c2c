// The live view: camera or video -> frames -> stream -> boxes on the picture, people beside it.

import { CameraError } from "./camera.js";
import { choice, keep } from "./choices.js";
import { listenToControls } from "./controls.js";
import { announce, byId, setText } from "./dom.js";
import { Frames } from "./frames.js";
import { isFaithful } from "../core/pixels.js";
import { Looks } from "./looks.js";
import { Announcer, LiveMetrics } from "./metrics.js";
import { Motion } from "../core/motion.js";
import { People } from "./people.js";
import { Settings } from "./settings.js";
import { Camera, Clip, offerCameras, sampleClip, unplayable } from "./source.js";
import { Stage } from "./stage.js";
import { Tools } from "./tools.js";
import { Tracker } from "../core/tracker.js";

const NO_FACE_MS = 1500;
const DRAW_MS = 25; // cameras do not have more frames
const NO_PICTURE = "The camera sends no picture";
const HIDDEN_PIXELS = ["hidden", "Your browser hides the picture from this page",
  "It protects against fingerprinting. Allow canvas data for this site with the icon in the address bar, then try again; or choose photos."];
// For other errors, trying again can help.
const BUTTONS = { unplayable: "Start camera", insecure: "", missing: "Use another camera" };

export class Live {
  /** `labeler`: the service, or the labeler of local mode; `reconnected()`: the service may run another model now. */
  constructor(labeler, reconnected) {
    this.reconnected = reconnected;
    this.model = "";
    this.stage = new Stage();
    this.video = this.stage.video;
    this.people = new People(byId("faces"), byId("nobody"), (number, on, done) => {
      if (on) return this.tracker.captureNeutral(number, done);
      this.tracker.forgetNeutral(number);
      done(false);
    });
    this.motion = new Motion();
    this.tracker = new Tracker();
    this.looks = new Looks();
    this.metrics = new LiveMetrics();
    this.announcer = new Announcer();
    this.settings = new Settings((settings) => this.apply(settings));
    this.tools = new Tools(this);
    this.frameSize = { width: 4, height: 3 };
    this.cameraId = choice("camera");
    this.use(labeler);
    this.frames = new Frames(this.video, {
      ready: (now) => this.state === "live" && this.stream.ready(now),
      taken: (canvas, at) => this.send(canvas, at),
    });
    this.listen();
  }

  get state() {
    return this.stage.state;
  }

  listen() {
    const click = (id, act) => byId(id).addEventListener("click", act);
    click("start", () => {
      if (this.state === "missing") this.chooseCamera(null);
      this.startCamera();
    });
    click("sample-clip", () => this.play(sampleClip()));
    click("stop", () => this.stop());
    click("pause", () => this.pause(this.state !== "paused"));
    byId("camera").addEventListener("change", () => {
      this.chooseCamera(byId("camera").value);
      this.startCamera();
    });
    click("flip", () => {
      const cameras = byId("camera");
      cameras.selectedIndex = (cameras.selectedIndex + 1) % cameras.length;
      cameras.dispatchEvent(new Event("change"));
    });
    listenToControls(this.video, () => {
      this.motion.clear();
      this.shown = [];
      this.redraw();
    });
    document.addEventListener("visibilitychange", () => this.attend());
    new ResizeObserver(() => this.redraw()).observe(this.stage.overlay);
    navigator.mediaDevices?.addEventListener("devicechange", () => this.devicesChanged());
    addEventListener("pagehide", () => this.source && this.stop()); // the browser may show this very page again, after Back
  }

  /** Switch to another labeler. */
  use(labeler) {
    this.stream?.close();
    this.labeler = labeler;
    const note = (text) => this.state === "live" && this.stage.badge(text);
    this.stream = labeler.stream({
      answer: (result, at) => this.answered(result, at),
      open: () => {
        note("");
        if (this.isLost) this.reconnected();
        this.isLost = false;
      },
      lost: (retryMs, everOpen) => this.lost(retryMs, everOpen),
      loading: () => note("Loading the models…"),
      failed: (why) => note(`Labeling in this tab failed: ${why}`),
    });
    this.attend();
  }

  apply(settings) {
    this.tracker.rules.smoothing_s = settings.smoothingMs / 1000;
    this.tracker.threshold = settings.threshold;
    this.video.classList.toggle("mirrored", settings.mirrored);
    this.stage.root.classList.toggle("with-stats", settings.statistics);
    this.redraw();
  }

  /** Use this camera from now on, and no other; null for any. */
  chooseCamera(deviceId) {
    this.cameraId = deviceId;
    keep("camera", deviceId, { shared: false });
  }

  async startCamera() {
    this.release();
    const camera = (this.source = new Camera(this.cameraId));
    this.stage.enter("asking", { title: "Waiting for the camera", text: "Choose “Allow” when your browser asks." });
    try {
      await camera.open();
      if (camera === this.source) await this.play(camera);
      else camera.release(this.video);
    } catch (error) {
      if (camera === this.source) this.fail(error);
    }
  }

  /** Show a camera that is open, or a clip. */
  async play(source) {
    if (source !== this.source) this.release();
    this.source = source;
    if (source instanceof Clip) this.stage.enter("loading", { title: "Loading the video", text: source.name });
    try {
      await source.attach(this.video, {
        ended: () => this.pause(true, "The video has ended"),
        broken: () => source === this.source && this.fail(unplayable(source)),
        gone: () => source === this.source && this.cameraLost(),
        mute: () => this.stage.badge(NO_PICTURE),
        unmute: () => this.stage.badge(""),
      });
    } catch (error) {
      if (source === this.source) this.fail(source instanceof Clip ? unplayable(source) : error);
      return;
    }
    if (source !== this.source) return;
    this.cameraId = source.usedId ?? this.cameraId;
    if (isFaithful(document.createElement("canvas").getContext("2d"))) this.begin();
    else this.fail(new CameraError(...HIDDEN_PIXELS));
  }

  begin() {
    this.settings.setMirrored(this.source.mirrored);
    this.stage.enter("live");
    announce(`${this.source.name} on`);
    byId("pause").focus({ preventScroll: true });
    this.attend();
    this.frames.start();
    this.animate();
  }

  fail(error) {
    this.release();
    if (!(error instanceof CameraError)) error = new CameraError("failed", "The camera did not start", error.message);
    this.stage.enter(error.kind, { title: error.title, text: error.text, button: BUTTONS[error.kind] ?? "Try again", error: true, samples: true });
    byId(byId("start").hidden ? "state-title" : "start").focus();
  }

  async devicesChanged() {
    const cameras = await offerCameras(this.cameraId);
    if (this.state === "lost" && cameras.some(({ deviceId }) => deviceId === this.cameraId)) setText(byId("state-text"), "It is connected again.");
  }

  cameraLost() {
    this.release();
    this.stage.enter("lost", { title: "Camera disconnected", button: "Start again", error: true,
      text: "It was unplugged, or another program is using it." });
  }

  /** Release the source and close the connection. */
  release() {
    this.tools.finish();
    this.stream.close();
    this.frames.stop();
    this.source?.release(this.video);
    this.source = this.last = null;
    this.forget();
    this.stage.clear();
    this.showPaused(false);
  }

  /** Forget all people: the next source starts with person 1. */
  forget() {
    this.motion.clear();
    this.tracker.clear();
    this.looks.drop(Infinity);
    this.looks.cuts.clear();
    this.people.pause(false);
    this.metrics.clear();
    this.people.clear();
    this.emptySince = null;
    this.shown = [];
    this.stage.slots.clear();
  }

  stop() {
    const title = this.source instanceof Clip ? "Video stopped" : "Camera off";
    this.release();
    this.stage.enter("idle", { title, text: "Nothing is being sent.", button: "Start camera", samples: true });
    byId("start").focus();
  }

  showPaused(paused) {
    byId("pause").setAttribute("aria-pressed", String(paused));
    setText(byId("pause-text"), paused ? "Resume" : "Pause");
  }

  pause(paused, why = "Paused: nothing is sent") {
    this.showPaused(paused);
    this.stage.enter(paused ? "paused" : "live");
    this.stage.badge(paused ? why : "");
    this.people.pause(paused);
    if (paused) {
      this.video.pause();
      this.stream.close();
    } else {
      this.metrics.clear();
      this.video.play();
      this.stream.open();
    }
  }

  /** Stop sending while the view is hidden, and resume when it is visible. */
  attend() {
    if (this.state !== "live") return;
    if (document.hidden || byId("panel-live").hidden) return this.stream.close();
    if (this.stream.wanted) return;
    this.stage.badge("");
    this.stream.open();
  }

  async lost(retryMs, everOpen) {
    const { stream } = this;
    this.isLost = true;
    this.motion.clear();
    this.people.pause(true);
    this.metrics.clear();
    this.stage.badge(everOpen ? "Connection lost, trying again…" : this.stage.badgeText || "Connecting…");
    const response = await fetch("v1/models").catch(() => null);
    if (this.state !== "live" || stream !== this.stream || stream.socket) return;
    if (response?.status === 401) this.stage.badge("The API key is no longer accepted: reload the page");
    if (!response && !everOpen) this.stage.badge("The service does not respond, trying again…");
    if (response?.ok && retryMs > 1000) this.stage.badge("The service has no free streams now, or a proxy does not pass on WebSockets. Trying again…");
  }

  async send(canvas, takenAt) {
    const { stream, source } = this;
    const picture = await createImageBitmap(canvas);
    const frame = await stream.encode(canvas);
    if (!frame || this.state !== "live" || stream !== this.stream) return picture.close();
    this.looks.keep(picture, takenAt);
    stream.send(frame, takenAt);
    this.last = { frame, source };
  }

  answered(result, takenAt) {
    if (this.state !== "live") return;
    if (result.error) {
      this.looks.drop(takenAt);
      return this.stage.badge(`Frames are not labeled: ${result.error.detail}`);
    }
    const now = performance.now();
    const cut = this.source instanceof Clip && this.looks.isCut(takenAt);
    const faces = this.tracker.update(this.looks.describe(result.faces, takenAt), takenAt, cut);
    this.frameSize = { width: result.width, height: result.height };
    this.motion.update(faces, takenAt, now);
    this.people.pause(false);
    this.people.update(faces, now, this.looks.at(takenAt));
    this.looks.drop(takenAt);
    this.metrics.add(now, now - takenAt);
    this.announcer.consider(faces, now);
    this.tools.answered(faces, now);
    setText(byId("count"), String(faces.length));
    this.tellWhetherEmpty(faces.length, now);
  }

  tellWhetherEmpty(count, now) {
    if (count) this.emptySince = null;
    else this.emptySince ??= now;
    const empty = this.emptySince !== null && now - this.emptySince > NO_FACE_MS;
    const text = this.source.media?.getVideoTracks()[0].muted ? NO_PICTURE : empty ? "No face in view" : "";
    this.stage.badge(text);
  }

  /** A paused picture is drawn again only when its size or the settings change. */
  redraw() {
    if (this.state === "paused") this.stage.draw(this.shown, this.frameSize, this.settings);
  }

  animate() {
    const { source } = this;
    this.drawnAt = 0;
    const draw = (now) => {
      if (source !== this.source) return;
      if (this.state === "live" && now - this.drawnAt > DRAW_MS) this.draw(now);
      requestAnimationFrame(draw);
    };
    requestAnimationFrame(draw);
  }

  draw(now) {
    this.drawnAt = now;
    const shown = (this.shown = this.motion.at(now));
    this.stage.draw(shown, this.frameSize, this.settings);
    this.people.refresh(now, this.settings.threshold);
    this.metrics.show(byId("fps"), byId("latency"), byId("count"), now);
    this.tools.drawn(shown);
  }
}
