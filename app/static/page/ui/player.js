// The source on the stage: a camera or a video is started, paused, lost and stopped here, and nowhere else.

import { CameraError } from "./camera.js";
import { choice, keep } from "./choices.js";
import { announce, byId, setText } from "./dom.js";
import { isFaithful } from "../core/pixels.js";
import { Camera, Clip, offerCameras, sampleClip, unplayable } from "./source.js";

const HIDDEN_PIXELS = ["hidden", "Your browser hides the picture from this page",
  "It protects against fingerprinting. Allow canvas data for this site with the icon in the address bar, then try again; or choose photos."];
// For other errors, trying again can help.
const BUTTONS = { unplayable: "Start camera", insecure: "", missing: "Use another camera" };

export class Player {
  /** `on.began(source)`; `on.paused(isPaused)`; `on.released()`: before another source, and after the last. */
  constructor(stage, on) {
    this.stage = stage;
    this.video = stage.video;
    this.on = on;
    this.source = null;
    this.cameraId = choice("camera");
    this.listen();
  }

  listen() {
    const click = (id, act) => byId(id).addEventListener("click", act);
    click("start", () => {
      if (this.stage.state === "missing") this.chooseCamera(null);
      this.startCamera();
    });
    click("sample-clip", () => this.play(sampleClip()));
    click("stop", () => this.stop());
    click("pause", () => this.pause(this.stage.state !== "paused"));
    const cameras = byId("camera");
    cameras.addEventListener("change", () => {
      this.chooseCamera(cameras.value);
      this.startCamera();
    });
    click("flip", () => {
      cameras.selectedIndex = (cameras.selectedIndex + 1) % cameras.length;
      cameras.dispatchEvent(new Event("change"));
    });
    navigator.mediaDevices?.addEventListener("devicechange", () => this.devicesChanged());
    addEventListener("pagehide", () => this.source && this.stop()); // the browser may show this very page again, after Back
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
    const ifCurrent = (act) => () => source === this.source && act();
    const fails = (error) => this.fail(source instanceof Clip ? unplayable(source) : error);
    if (source instanceof Clip) this.stage.enter("loading", { title: "Loading the video", text: source.name });
    try {
      await source.attach(this.video, {
        ended: () => this.pause(true, "The video has ended"),
        broken: ifCurrent(fails),
        gone: ifCurrent(() => this.cameraLost()),
        troubled: ifCurrent(() => this.stage.badge(source.trouble)),
      });
    } catch (error) {
      return ifCurrent(() => fails(error))();
    }
    if (source !== this.source) return;
    this.cameraId = source.usedId ?? this.cameraId;
    if (isFaithful(document.createElement("canvas").getContext("2d"))) this.begin();
    else this.fail(new CameraError(...HIDDEN_PIXELS));
  }

  begin() {
    this.stage.enter("live");
    announce(`${this.source.name} on`);
    byId("pause").focus({ preventScroll: true });
    this.on.began(this.source);
  }

  fail(error) {
    this.release();
    if (!(error instanceof CameraError)) error = new CameraError("failed", "The camera did not start", error.message);
    this.stage.enter(error.kind, { title: error.title, text: error.text, button: BUTTONS[error.kind] ?? "Try again", error: true, samples: true });
    byId(byId("start").hidden ? "state-title" : "start").focus();
  }

  cameraLost() {
    this.release();
    this.stage.enter("lost", { title: "Camera disconnected", button: "Start again", error: true,
      text: "It was unplugged, or another program is using it." });
  }

  async devicesChanged() {
    const cameras = await offerCameras(this.cameraId);
    if (this.stage.state === "lost" && cameras.some(({ deviceId }) => deviceId === this.cameraId)) setText(byId("state-text"), "It is connected again.");
  }

  pause(paused, why = "Paused: nothing is sent") {
    this.showPaused(paused);
    this.stage.enter(paused ? "paused" : "live");
    this.stage.badge(paused ? why : "");
    if (paused) this.video.pause();
    else this.video.play();
    this.on.paused(paused);
  }

  showPaused(paused) {
    byId("pause").setAttribute("aria-pressed", String(paused));
    setText(byId("pause-text"), paused ? "Resume" : "Pause");
  }

  stop() {
    const title = this.source instanceof Clip ? "Video stopped" : "Camera off";
    this.release();
    this.stage.enter("idle", { title, text: "Nothing is being sent.", button: "Start camera", samples: true });
    byId("start").focus();
  }

  release() {
    this.on.released();
    this.source?.release(this.video);
    this.source = null;
    this.stage.clear();
    this.showPaused(false);
  }
}
