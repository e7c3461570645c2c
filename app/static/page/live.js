// The live view: camera -> frames -> stream -> boxes on the picture, people beside it.

import { attentionFigure, overlapOf } from "./attention.js";
import { CameraTrouble, listCameras, openCamera } from "./camera.js";
import { announce, byId, element, setText } from "./dom.js";
import { drawFace } from "./draw.js";
import { People } from "./faces.js";
import { Announcer, Figures } from "./figures.js";
import { Motion } from "./motion.js";
import { ask } from "./photos.js";
import { FrameStream } from "./stream.js";

const FRAME_PX = 640; // long side of a frame on its way: what the detector looks at first
const QUALITY = 0.8;
const MIN_BETWEEN_MS = 1000 / 25;

export class Live {
  constructor() {
    this.video = byId("video");
    this.overlay = byId("overlay");
    this.frame = document.createElement("canvas");
    this.people = new People(byId("faces"), byId("nobody"));
    this.motion = new Motion();
    this.figures = new Figures();
    this.announcer = new Announcer();
    this.frameSize = { width: 4, height: 3 };
    this.sentAt = 0;
    const address = new URL("v1/stream", document.baseURI);
    address.protocol = address.protocol.replace("http", "ws");
    this.stream = new FrameStream(address.href, {
      answer: (result, at) => this.answered(result, at),
      open: () => this.opened(),
      lost: (retryMs, everOpen) => this.lost(retryMs, everOpen),
    });
    this.listen();
  }

  listen() {
    byId("start").addEventListener("click", () => this.start());
    byId("stop").addEventListener("click", () => this.stop());
    byId("pause").addEventListener("click", () => this.pause(this.state !== "paused"));
    byId("look").addEventListener("click", () => this.tellWhereItLooked());
    byId("mirror").addEventListener("change", () => this.video.classList.toggle("mirrored", byId("mirror").checked));
    byId("camera").addEventListener("change", () => this.start(byId("camera").value));
    document.addEventListener("visibilitychange", () => this.attend());
    navigator.mediaDevices?.addEventListener("devicechange", () => this.devicesChanged());
    addEventListener("pagehide", () => this.release());
  }

  /** Show a state: `live` and `paused` show the picture, every other one a card that says what is going on. */
  enter(state, { title = "", text = "", button = "", error = false } = {}) {
    this.state = state;
    const stage = byId("stage");
    Object.assign(stage.dataset, { state, kind: error ? "error" : "calm" });
    const showsPicture = state === "live" || state === "paused";
    byId("state").hidden = showsPicture;
    byId("controls").hidden = byId("stats").hidden = !showsPicture;
    setText(byId("state-title"), title);
    setText(byId("state-text"), text);
    byId("start").hidden = !button;
    setText(byId("start"), button);
    if (title) announce(`${title}. ${text}`);
  }

  badge(text) {
    byId("badge").hidden = !text;
    setText(byId("badge"), text);
    if (text) announce(text);
  }

  async start(deviceId) {
    this.release();
    const turn = (this.turn = {}); // a later start makes this one void
    this.enter("asking", { title: "Asking for the camera", text: "Choose “Allow” where your browser asks." });
    try {
      const media = await openCamera(deviceId);
      if (turn !== this.turn) return media.getTracks().forEach((track) => track.stop());
      await this.attach(media);
    } catch (error) {
      if (turn === this.turn) this.fail(error);
    }
  }

  fail(error) {
    this.release();
    if (!(error instanceof CameraTrouble)) error = new CameraTrouble("failed", "The camera did not start", error.message);
    this.enter(error.kind, { title: error.title, text: error.text, button: "Try again", error: true });
  }

  async attach(media) {
    this.media = media;
    const [track] = media.getVideoTracks();
    track.addEventListener("ended", () => this.cameraLost(track));
    track.addEventListener("mute", () => this.badge("The camera sends no picture"));
    track.addEventListener("unmute", () => this.badge(""));
    this.video.srcObject = media;
    await this.video.play();
    const settings = track.getSettings();
    byId("mirror").checked = settings.facingMode !== "environment";
    this.video.classList.toggle("mirrored", byId("mirror").checked);
    this.fitStage();
    this.enter("live");
    announce("Camera on");
    byId("pause").focus({ preventScroll: true });
    this.attend();
    this.watchFrames();
    this.drawOn();
    await this.listCameras(settings.deviceId);
  }

  fitStage() {
    byId("stage").style.aspectRatio = `${this.video.videoWidth} / ${this.video.videoHeight}`;
  }

  async listCameras(current) {
    const cameras = await listCameras();
    const options = cameras.map((camera, place) =>
      element("option", { value: camera.deviceId, selected: camera.deviceId === current }, camera.label || `Camera ${place + 1}`));
    byId("camera").replaceChildren(...options);
    byId("camera-field").hidden = cameras.length < 2;
  }

  async devicesChanged() {
    const cameras = await listCameras();
    if (this.state === "lost" && cameras.length) await this.start();
    else if (this.media) await this.listCameras(this.media.getVideoTracks()[0].getSettings().deviceId);
  }

  cameraLost(track) {
    if (this.media?.getVideoTracks()[0] !== track) return;
    this.release();
    this.enter("lost", { title: "The camera is gone", button: "Try again", error: true,
      text: "It was unplugged, or another program took it. It starts again as soon as it is back." });
  }

  /** Let go of camera and connection. */
  release() {
    this.turn = null;
    this.stream.close();
    this.media?.getTracks().forEach((track) => track.stop());
    this.media = this.lastFrame = null;
    this.video.srcObject = null;
    this.clear();
    this.people.clear();
  }

  clear() {
    this.motion.clear();
    this.figures.clear();
    this.badge("");
    byId("pause").setAttribute("aria-pressed", "false");
    setText(byId("pause"), "Pause");
    this.overlay.getContext("2d").clearRect(0, 0, this.overlay.width, this.overlay.height);
  }

  stop() {
    this.release();
    this.enter("idle", { title: "Camera off", text: "Nothing is being sent.", button: "Start camera" });
    byId("start").focus();
  }

  pause(paused) {
    byId("pause").setAttribute("aria-pressed", String(paused));
    setText(byId("pause"), paused ? "Resume" : "Pause");
    this.enter(paused ? "paused" : "live");
    if (paused) {
      this.video.pause();
      this.stream.close();
      this.badge("Paused: nothing is sent");
    } else {
      this.badge("");
      this.figures.clear();
      this.video.play();
      this.stream.open();
    }
  }

  /** A view that nobody sees sends nothing; it goes on when it is seen again. */
  attend() {
    if (this.state !== "live") return;
    if (document.hidden || byId("panel-live").hidden) return this.stream.close();
    if (this.stream.wanted) return;
    this.motion.clear();
    this.figures.clear();
    this.badge("");
    this.stream.open();
  }

  opened() {
    if (this.state === "live") this.badge("");
  }

  async lost(retryMs, everOpen) {
    this.motion.clear();
    this.figures.clear();
    this.badge(everOpen ? "Connection lost, trying again…" : "Connecting…");
    const answer = await fetch("v1/models").catch(() => null);
    if (answer?.ok && this.state === "live" && !this.stream.socket && retryMs > 1000) {
      this.badge("The service takes no more streams now, trying again…");
    }
  }

  watchFrames() {
    const media = this.media;
    const next = this.video.requestVideoFrameCallback
      ? (look) => this.video.requestVideoFrameCallback(look)
      : (look) => requestAnimationFrame(look);
    const look = () => {
      if (media !== this.media) return;
      this.look();
      next(look);
    };
    next(look);
  }

  look() {
    const now = performance.now();
    // a little early is on time: camera frames come in steps of 33 ms
    if (this.state !== "live" || this.encoding || now - this.sentAt < MIN_BETWEEN_MS - 8 || !this.stream.ready(now)) return;
    const { videoWidth, videoHeight } = this.video;
    if (!videoWidth) return;
    const scale = Math.min(1, FRAME_PX / Math.max(videoWidth, videoHeight));
    const size = { width: Math.round(videoWidth * scale), height: Math.round(videoHeight * scale) };
    if (this.frame.width !== size.width || this.frame.height !== size.height) {
      Object.assign(this.frame, size);
      this.fitStage();
    }
    this.frame.getContext("2d").drawImage(this.video, 0, 0, size.width, size.height);
    this.sentAt = now;
    this.encode(now);
  }

  async encode(takenAt) {
    this.encoding = true;
    try {
      const blob = await new Promise((done) => this.frame.toBlob(done, "image/jpeg", QUALITY));
      this.lastFrame = blob;
      if (blob && this.state === "live") this.stream.send(await blob.arrayBuffer(), takenAt);
    } finally {
      this.encoding = false;
    }
  }

  answered(result, takenAt) {
    if (this.state !== "live") return;
    if (result.error) return this.badge(`The service cannot read the frames: ${result.error.detail}`);
    const now = performance.now();
    this.frameSize = { width: result.width, height: result.height };
    this.motion.update(result.faces, takenAt, now);
    this.people.update(result.faces, now);
    this.people.refresh(now);
    this.figures.add(now, now - takenAt);
    this.announcer.consider(result.faces, now);
    setText(byId("count"), String(result.faces.length));
  }

  /** Ask once more for the newest frame, with the map of each face, and put it beside the person it belongs to. */
  async tellWhereItLooked() {
    if (!this.lastFrame) return;
    byId("look").disabled = true;
    try {
      const { images: [{ faces }] } = await ask(this.lastFrame, { explain: true });
      for (const face of faces) {
        const track = this.motion.nearest((box) => overlapOf(box, face.box));
        if (track !== undefined) this.people.attach(track, await attentionFigure(face.explanation));
      }
      announce(faces.length ? "The picture beside each person shows where the model looked" : "No face in this frame");
    } catch (error) {
      announce(`The service did not say: ${error.detail ?? error.message}`);
    } finally {
      byId("look").disabled = false;
    }
  }

  drawOn() {
    const media = this.media;
    const draw = (now) => {
      if (media !== this.media) return;
      if (this.state === "live") {
        this.draw(now);
        this.people.refresh(now);
        this.figures.show(byId("fps"), byId("latency"), now);
      }
      requestAnimationFrame(draw);
    };
    requestAnimationFrame(draw);
  }

  draw(now) {
    const ratio = devicePixelRatio || 1;
    const { overlay } = this;
    const width = Math.round(overlay.clientWidth * ratio);
    const height = Math.round(overlay.clientHeight * ratio);
    if (overlay.width !== width || overlay.height !== height) Object.assign(overlay, { width, height });
    const context = overlay.getContext("2d");
    context.clearRect(0, 0, width, height);
    const scale = Math.min(width / this.frameSize.width, height / this.frameSize.height);
    const edge = { width: this.frameSize.width * scale, height: this.frameSize.height * scale };
    edge.x = (width - edge.width) / 2;
    edge.y = (height - edge.height) / 2;
    const mirrored = byId("mirror").checked;
    for (const { face, box, opacity } of this.motion.at(now)) {
      const left = mirrored ? this.frameSize.width - box.x - box.width : box.x;
      const place = {
        x: edge.x + left * scale, y: edge.y + box.y * scale, width: box.width * scale, height: box.height * scale,
      };
      drawFace(context, face, place, { unit: Math.max(ratio, width / 900), opacity, edge });
    }
  }
}
