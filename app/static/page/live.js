// The live view: camera or video -> frames -> stream -> boxes on the picture, people beside it.

import { CameraError } from "./camera.js";
import { announce, byId, setText } from "./dom.js";
import { Frames } from "./frames.js";
import { Announcer, LiveMetrics } from "./metrics.js";
import { Motion } from "./motion.js";
import { People } from "./people.js";
import { Settings } from "./settings.js";
import { Camera, Clip, offerCameras, unplayable } from "./source.js";
import { Stage } from "./stage.js";
import { Steady } from "./steady.js";
import { Tools } from "./tools.js";

const NO_FACE_MS = 1500;
const DRAW_MS = 25; // cameras do not have more frames
const SAMPLE = "page/samples/clip.webm";

export class Live {
  /** `labeler`: the service, or the labeler of local mode. */
  constructor(labeler) {
    this.stage = new Stage();
    this.video = this.stage.video;
    this.people = new People(byId("faces"), byId("nobody"), byId("legend"));
    this.motion = new Motion();
    this.steady = new Steady();
    this.metrics = new LiveMetrics();
    this.announcer = new Announcer();
    this.settings = new Settings((settings) => this.apply(settings));
    this.tools = new Tools(this);
    this.frameSize = { width: 4, height: 3 };
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
    click("start", () => this.startCamera());
    click("sample-clip", () => this.play(new Clip("Sample clip", SAMPLE, { loop: true })));
    click("stop", () => this.stop());
    click("pause", () => this.pause(this.state !== "paused"));
    byId("camera").addEventListener("change", () => this.startCamera(byId("camera").value));
    document.addEventListener("visibilitychange", () => this.attend());
    navigator.mediaDevices?.addEventListener("devicechange", () => this.devicesChanged());
    addEventListener("pagehide", () => this.release());
  }

  /** Switch to another labeler. */
  use(labeler) {
    this.stream?.close();
    if (this.stream) this.forget();
    this.labeler = labeler;
    const note = (text) => this.state === "live" && this.stage.badge(text);
    this.stream = labeler.stream({
      answer: (result, at) => this.answered(result, at),
      open: () => note(""),
      lost: (retryMs, everOpen) => this.lost(retryMs, everOpen),
      loading: () => note("Loading the models…"),
      failed: (why) => note(`Labeling in this tab failed: ${why}`),
    });
    this.attend();
  }

  apply(settings) {
    Object.assign(this.steady, { settleMs: settings.settleMs, threshold: settings.threshold });
    this.video.classList.toggle("mirrored", settings.mirrored);
  }

  async startCamera(deviceId) {
    this.release();
    const camera = (this.source = new Camera(deviceId));
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
        gone: () => source === this.source && this.cameraLost(),
        mute: () => this.stage.badge("The camera sends no picture"),
        unmute: () => this.stage.badge(""),
      });
    } catch (error) {
      if (source === this.source) this.fail(source instanceof Clip ? unplayable(source) : error);
      return;
    }
    if (source === this.source) this.begin();
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
    this.stage.enter(error.kind, { title: error.title, text: error.text, button: "Try again", error: true, samples: true });
    byId("start").focus();
  }

  async devicesChanged() {
    const cameras = await offerCameras(this.source?.media?.getVideoTracks()[0].getSettings().deviceId);
    if (this.state === "lost" && cameras.length) await this.startCamera();
  }

  cameraLost() {
    this.release();
    this.stage.enter("lost", { title: "Camera disconnected", button: "Try again", error: true,
      text: "It was unplugged, or another program is using it. It restarts as soon as it is available." });
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

  /** Forget all people; numbers restart on the next connection. */
  forget() {
    this.streamId = null;
    this.motion.clear();
    this.steady.clear();
    this.metrics.clear();
    this.people.clear();
    this.emptySince = null;
    this.stage.slots.clear();
  }

  stop() {
    this.release();
    this.stage.enter("idle", { title: "Camera off", text: "Nothing is being sent.", button: "Start camera", samples: true });
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
    this.motion.clear();
    this.metrics.clear();
    this.stage.badge(everOpen ? "Connection lost, trying again…" : "Connecting…");
    const response = await fetch("v1/models").catch(() => null);
    if (response?.ok && this.state === "live" && !this.stream.socket && retryMs > 1000) {
      this.stage.badge("The service has no free streams now, trying again…");
    }
  }

  async send(canvas, takenAt) {
    const { stream } = this;
    const frame = await stream.encode(canvas);
    if (!frame || this.state !== "live" || stream !== this.stream) return;
    stream.send(frame, takenAt);
    this.last = { frame, stream: this.streamId };
  }

  answered(result, takenAt) {
    if (this.state !== "live") return;
    if (result.error) return this.stage.badge(`The service cannot read the frames: ${result.error.detail}`);
    const now = performance.now();
    this.meet(result.stream);
    const faces = this.steady.update(result.faces, takenAt);
    this.frameSize = { width: result.width, height: result.height };
    this.motion.update(faces, takenAt, now);
    this.people.update(faces, now);
    this.metrics.add(now, now - takenAt);
    this.announcer.consider(faces, now);
    this.tools.answered(result.stream, faces, now);
    setText(byId("count"), String(faces.length));
    this.tellWhetherEmpty(faces.length, now);
  }

  /** Numbers of people are valid within one connection only: a new one starts without people, and a note says so. */
  meet(stream) {
    if (stream === this.streamId) return;
    const again = this.streamId !== null;
    this.forget();
    this.streamId = stream;
    if (again) this.stage.note("New connection: people are numbered from 1 again");
  }

  tellWhetherEmpty(count, now) {
    if (count) this.emptySince = null;
    else this.emptySince ??= now;
    const empty = this.emptySince !== null && now - this.emptySince > NO_FACE_MS;
    this.stage.badge(empty ? "No face in view" : "");
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
    const shown = this.motion.at(now);
    this.stage.draw(shown, this.frameSize, this.settings);
    this.people.look(this.video, shown, this.video.videoWidth / this.frameSize.width, now);
    this.people.refresh(now, this.settings.threshold);
    this.metrics.show(byId("fps"), byId("latency"), now);
    this.tools.drawn(shown);
  }
}
