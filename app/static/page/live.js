// The live view: its state and its loop. A camera or a video plays on the stage, its frames go to a labeler (socket.js or
// local/labeler.js) as fast as that is, and each result becomes people: tracked, drawn over the picture, and shown on cards.

import { Camera, Clip, SourceError, offerCameras, sampleClip } from "./camera.js";
import { Cuts } from "./cuts.js";
import { announce, byId, clock, download, resize, setText } from "./dom.js";
import { drawFaces, placed } from "./draw.js";
import { Announcer, colorOf } from "./labels.js";
import { isFaithful } from "./local/pixels.js";
import { describe, smallOf } from "./looks.js";
import { Motion } from "./motion.js";
import { People } from "./people.js";
import { choice, keep } from "./settings.js";
import { Tracker } from "./tracker.js";

const FRAME_PX = 640; // long side of a labeled frame, as in the detector's first pass
const MIN_BETWEEN_MS = 1000 / 30 - 8; // camera frames arrive every 33 ms, more or less
const DRAW_MS = 25; // cameras do not have more frames
const NOTE_MS = 4000;
const HIDE_MS = 3000;
const LONG_WAIT_MS = 5000;
const NOBODY_MS = 1500;
// Results of a frame older than the first, or than some round trips, fade; some time later they are gone.
const OLD_MS = 700;
const OLD_TRIPS = 3;
const FADING_MS = 800;
const SLOW_TRIP_MS = 400; // from here on, the picture shown is the frame that was labeled
const SHORTCUTS = { " ": "pause", f: "fullscreen", r: "record" };
const HIDDEN_PIXELS = ["hidden", "Your browser hides the picture from this page",
  "It protects against fingerprinting. Allow canvas data for this site with the icon in the address bar, then try again; or choose photos."];

export class Live {
  tripMs; size; shown;

  /** `labeler`: the service, or that of local mode; `settings`: {mirror, threshold}. */
  constructor(labeler, settings) {
    this.settings = settings;
    this.root = byId("stage");
    this.video = byId("video");
    this.overlay = byId("overlay");
    this.canvas = document.createElement("canvas"); // of the frame to label
    this.tracker = new Tracker();
    this.motion = new Motion();
    this.people = new People(byId("faces"), byId("nobody"));
    this.slots = new Map();
    this.cameraId = choice("camera");
    this.observers = []; // {people(faces, now, picture), drawn(now), stop()}: a recording, a round
    this.release();
    this.enter("idle");
    this.use(labeler);
    this.listen();
  }

  listen() {
    const click = (id, act) => byId(id).addEventListener("click", act);
    click("start", () => {
      if (this.state === "missing") this.chooseCamera(null);
      this.startCamera();
    });
    click("sample-clip", () => this.play(sampleClip()));
    for (const id of ["stop", "cancel"]) click(id, () => this.stop());
    click("pause", () => this.pause(this.state !== "paused"));
    click("snapshot", () => this.snapshot());
    click("fullscreen", () => (document.fullscreenElement ? document.exitFullscreen()
      : byId("view").requestFullscreen().catch((error) => this.note(`No fullscreen: ${error.message}`))));
    click("flip", () => {
      byId("camera").selectedIndex = (byId("camera").selectedIndex + 1) % byId("camera").length;
      byId("camera").dispatchEvent(new Event("change"));
    });
    byId("camera").addEventListener("change", (event) => {
      this.chooseCamera(event.target.value);
      this.startCamera();
    });
    byId("fullscreen").hidden = !document.fullscreenEnabled; // not on iPhones
    for (const event of ["pointermove", "pointerdown", "keydown", "fullscreenchange"]) byId("view").addEventListener(event, () => this.wake());
    for (const event of ["durationchange", "timeupdate", "emptied"]) this.video.addEventListener(event, () => this.showPosition());
    for (const event of ["loadedmetadata", "resize"]) this.video.addEventListener(event, () => this.takeShape());
    byId("seek").addEventListener("input", (event) => {
      this.video.currentTime = event.target.valueAsNumber;
      this.motion.clear();
      this.redraw();
    });
    document.addEventListener("keydown", (event) => this.press(event));
    document.addEventListener("visibilitychange", () => this.attend());
    new ResizeObserver(() => this.redraw()).observe(this.overlay);
    navigator.mediaDevices?.addEventListener("devicechange", async () => {
      const cameras = await offerCameras(this.cameraId);
      if (this.state === "lost" && cameras.some(({ deviceId }) => deviceId === this.cameraId)) setText(byId("state-text"), "It is connected again.");
    });
    addEventListener("pagehide", () => this.source && this.stop()); // the browser may show this very page again, after Back
  }

  press(event) {
    const button = byId(SHORTCUTS[event.key.toLowerCase()]);
    const isTaken = event.target.closest(event.key === " " ? "input, select, dialog, button, summary, a" : "input, select, dialog");
    if (!button || isTaken || event.ctrlKey || event.metaKey || event.altKey || event.repeat || !button.getClientRects().length) return;
    event.preventDefault();
    button.click();
  }

  /** In fullscreen, hide the controls while nobody moves. */
  wake() {
    byId("view").classList.remove("idle");
    clearTimeout(this.idleTimer);
    this.idleTimer = setTimeout(() => byId("view").classList.add("idle"), HIDE_MS);
  }

  // What the stage says

  /** Show a state: `live` and `paused` show the picture, all others a card with a message. */
  enter(state, { title = "What expression does each face show?", text = "Live or in photos. Nothing is stored.", button = "Start camera", error = false, choices = true } = {}) {
    clearTimeout(this.waitTimer);
    const showsPicture = ["live", "paused"].includes(state);
    const hadFocus = [byId("state"), byId("controls")].some((part) => part.contains(document.activeElement));
    const isFirst = !this.state;
    this.state = state;
    Object.assign(this.root.dataset, { state, kind: error ? "error" : "calm" });
    byId("state").hidden = showsPicture;
    byId("controls").hidden = !showsPicture;
    setText(byId("pause-text"), state !== "paused" ? "Pause" : this.hasEnded ? "Play again" : "Resume");
    byId("pause").setAttribute("aria-pressed", String(state === "paused"));
    if (showsPicture) return;
    setText(byId("state-title"), title);
    setText(byId("state-text"), text);
    byId("start").hidden = !button;
    byId("cancel").hidden = state !== "asking";
    setText(byId("start-text"), button);
    byId("choices").hidden = !choices;
    if (!isFirst) announce(`${title}. ${text}`);
    if (hadFocus || error) (button ? byId("start") : byId("state-title")).focus();
  }

  /** A message that stays until the next; empty removes it. */
  badge(text) {
    if (text && text !== this.badgeText) announce(text);
    this.badgeText = text;
    this.showMessage();
  }

  /** A message of some seconds. */
  note(text) {
    announce(text);
    this.noteText = text;
    clearTimeout(this.noteTimer);
    this.noteTimer = setTimeout(() => {
      this.noteText = "";
      this.showMessage();
    }, NOTE_MS);
    this.showMessage();
  }

  showMessage() {
    const text = this.noteText || this.badgeText;
    byId("badge").hidden = !text;
    setText(byId("badge"), text);
  }

  showPosition() {
    const { duration, currentTime } = this.video;
    byId("seek").hidden = !(Number.isFinite(duration) && duration > 0); // a camera has no end
    if (byId("seek").hidden) return;
    Object.assign(byId("seek"), { max: duration, value: currentTime });
    byId("seek").setAttribute("aria-valuetext", `${clock(currentTime)} of ${clock(duration)}`);
  }

  /** On a phone, the stage has the aspect ratio of the picture. */
  takeShape() {
    const { videoWidth: width, videoHeight: height } = this.video;
    if (width && height) this.root.style.setProperty("--ratio", String(width / height));
  }

  // The source

  /** Use this camera from now on, and no other; null for any. */
  chooseCamera(deviceId) {
    this.cameraId = deviceId;
    keep("camera", deviceId, { shared: false });
  }

  async startCamera() {
    this.release();
    const camera = (this.source = new Camera(this.cameraId));
    this.enter("asking", { title: "Waiting for the camera", text: "Choose “Allow” when your browser asks.", button: "", choices: false });
    byId("cancel").focus();
    this.waitTimer = setTimeout(() => {
      setText(byId("state-text"), "Look for the camera sign in the address bar, and choose “Allow” there.");
      byId("choices").hidden = false;
      announce(byId("state-text").textContent);
    }, LONG_WAIT_MS);
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
    const isCurrent = () => source === this.source;
    if (source instanceof Clip) this.enter("loading", { title: "Loading the video", text: source.name, button: "", choices: false });
    try {
      await source.attach(this.video, {
        lost: (error) => isCurrent() && this.fail(error),
        troubled: () => isCurrent() && this.badge(source.trouble),
        ended: () => {
          this.hasEnded = true;
          this.pause(true, "The video has ended");
        },
      });
      if (!isFaithful(document.createElement("canvas").getContext("2d"))) throw new SourceError(...HIDDEN_PIXELS);
    } catch (error) {
      if (isCurrent()) this.fail(error);
      return;
    }
    if (!isCurrent()) return;
    this.cameraId = source.isCamera ? source.deviceId : this.cameraId;
    this.enter("live");
    announce(`${source.name} on`);
    byId("pause").focus({ preventScroll: true });
    this.apply();
    this.attend();
    this.look(source);
    const draw = (now) => {
      if (!isCurrent()) return;
      if (this.state === "live" && now - this.drawnAt > DRAW_MS) this.draw(now);
      requestAnimationFrame(draw);
    };
    requestAnimationFrame(draw);
  }

  fail(error) {
    this.release();
    const { kind, title, text, button } = error instanceof SourceError ? error : new SourceError("failed", "The camera did not start", error.message);
    this.enter(kind, { title, text, button, error: true });
  }

  pause(paused, why = "Paused: nothing is sent") {
    if (!paused) this.hasEnded = false;
    this.enter(paused ? "paused" : "live");
    this.badge(paused ? why : "");
    if (paused) this.video.pause();
    else this.video.play();
    this.attend();
  }

  stop() {
    const title = this.source instanceof Clip ? "Video stopped" : "Camera off";
    this.release();
    this.enter("idle", { title, text: "Nothing is being sent." });
    byId("start").focus();
  }

  /** Before another source, and after the last: forget everything about the people. */
  release() {
    for (const observer of this.observers) observer.stop();
    this.stream?.close();
    this.source?.release(this.video);
    this.frame?.close();
    this.source = this.frame = null;
    this.tracker.clear();
    this.motion.clear();
    this.people.clear();
    this.slots.clear();
    this.cuts = new Cuts();
    this.announcer = new Announcer();
    Object.assign(this, { shown: [], size: { width: 4, height: 3 }, problem: "", badgeText: "", noteText: "", hasEnded: false });
    Object.assign(this, { tripMs: 0, answeredAt: 0, drawnAt: 0, lookedAt: 0, nobodySince: null });
    this.showMessage();
    this.root.style.removeProperty("--tint");
    this.overlay.getContext("2d").clearRect(0, 0, this.overlay.width, this.overlay.height);
  }

  // Frames out, results in

  /** Label with another labeler from now on. */
  use(labeler) {
    this.stream?.close();
    this.isLocal = labeler.local;
    this.stream = labeler.stream();
    this.attend();
  }

  /** Use the settings. */
  apply() {
    this.tracker.threshold = this.settings.threshold;
    this.mirrored = this.settings.mirror && Boolean(this.source?.mirrored);
    this.video.classList.toggle("mirrored", this.mirrored);
    this.redraw();
  }

  /** Send frames only while the view is visible and not paused. */
  attend() {
    const wanted = this.state === "live" && !document.hidden && !byId("panel-live").hidden;
    if (!wanted) return this.stream.close();
    if (!this.stream.wanted) this.answeredAt = performance.now();
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
    if (!videoWidth || at - this.lookedAt < MIN_BETWEEN_MS || !stream.ready(at)) return;
    this.lookedAt = at;
    const scale = Math.min(1, FRAME_PX / Math.max(videoWidth, videoHeight));
    resize(canvas, Math.round(videoWidth * scale), Math.round(videoHeight * scale));
    canvas.getContext("2d").drawImage(this.video, 0, 0, canvas.width, canvas.height);
    const [frame, result] = await Promise.all([createImageBitmap(canvas), stream.label(canvas)]);
    if (result && source === this.source && stream === this.stream && !result.error) return this.answer(result, frame, at);
    frame.close();
    if (result?.error && source === this.source) this.problem = `Frames are not labeled: ${result.error.detail}`;
  }

  /** Take over the result of a frame that was taken at `at`. */
  answer(result, frame, at) {
    const now = performance.now();
    this.tripMs += (this.tripMs ? 0.2 : 1) * (now - at - this.tripMs);
    Object.assign(this, { answeredAt: at, problem: "", size: { width: result.width, height: result.height } });
    const cut = !this.source.isCamera && this.cuts.isCut(smallOf(frame));
    const faces = this.tracker.update(describe(result.faces, frame), at, cut);
    this.motion.update(faces, at, now);
    this.people.update(faces, now, frame);
    this.nobodySince = faces.length ? null : (this.nobodySince ?? now);
    for (const observer of this.observers) observer.people(faces, now, frame);
    this.root.style.setProperty("--tint", faces.length === 1 ? colorOf(faces[0].label) : "transparent");
    announceNew(this.announcer.textOf(faces, now));
    this.frame?.close();
    this.frame = frame;
  }

  // The picture

  draw(now) {
    this.drawnAt = now;
    const oldMs = Math.max(OLD_MS, OLD_TRIPS * this.tripMs);
    const freshness = Math.min(1, Math.max(0, 1 - (now - this.answeredAt - oldMs) / FADING_MS));
    this.isSlow = this.tripMs > SLOW_TRIP_MS && freshness > 0;
    const shown = this.isSlow ? this.motion.last() : this.motion.at(now);
    this.shown = freshness ? shown.map(({ opacity, ...rest }) => ({ ...rest, opacity: opacity * freshness })) : [];
    this.drawOverlay();
    this.people.refresh(now, this.settings.threshold, freshness < 1);
    for (const observer of this.observers) observer.drawn(now);
    const isEmpty = this.nobodySince !== null && now - this.nobodySince > NOBODY_MS;
    const waiting = freshness ? "" : `Waiting for the ${this.isLocal ? "labels" : "service"}`;
    if (waiting) this.root.style.removeProperty("--tint");
    this.badge(this.stream.message || this.source.trouble || this.problem || waiting || (isEmpty ? "No face in view" : ""));
  }

  /** A paused picture is drawn again only when its size or the settings change. */
  redraw() {
    if (this.state === "paused") this.drawOverlay();
  }

  /** Draw the faces over the picture, which is fitted in as `object-fit: contain`. */
  drawOverlay() {
    const { overlay, size, mirrored, slots } = this;
    const ratio = devicePixelRatio || 1;
    resize(overlay, Math.round(overlay.clientWidth * ratio), Math.round(overlay.clientHeight * ratio));
    const context = overlay.getContext("2d");
    context.clearRect(0, 0, overlay.width, overlay.height);
    const scale = Math.min(overlay.width / size.width, overlay.height / size.height);
    const [width, height] = [size.width * scale, size.height * scale];
    const area = { x: (overlay.width - width) / 2, y: (overlay.height - height) / 2, width, height };
    if (this.isSlow) drawPicture(context, this.frame, area, mirrored);
    drawFaces(context, placed(this.shown, size, area, mirrored), { unit: Math.max(ratio, width / 900), area, slots });
  }

  /** Draw the picture with its faces, as displayed but without margins, on a canvas of the size of the video. */
  compose(canvas) {
    const { videoWidth: width, videoHeight: height } = this.video;
    resize(canvas, width, height);
    const area = { x: 0, y: 0, width, height };
    drawPicture(canvas.getContext("2d"), this.isSlow ? this.frame : this.video, area, this.mirrored);
    drawFaces(canvas.getContext("2d"), placed(this.shown, this.size, area, this.mirrored), { unit: Math.max(1, width / 700), area, slots: new Map(this.slots) });
  }

  snapshot() {
    const canvas = document.createElement("canvas");
    this.compose(canvas);
    const name = `mien-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.jpg`;
    canvas.toBlob((blob) => download(blob, name), "image/jpeg", 0.92);
    this.note("Snapshot saved to your downloads");
  }
}

function announceNew(text) {
  if (text) announce(text);
}

function drawPicture(context, picture, { x, y, width, height }, mirrored) {
  context.save();
  if (mirrored) context.transform(-1, 0, 0, 1, 2 * x + width, 0);
  context.drawImage(picture, x, y, width, height);
  context.restore();
}
