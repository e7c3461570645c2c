// The stage: its state, short messages on the picture, and the canvas above it.

import { announce, byId, resize, setText } from "./dom.js";
import { drawFaces, placed } from "../core/draw.js";

const NOTE_MS = 4000;
const WITH_PICTURE = ["live", "paused"];

export class Stage {
  constructor() {
    this.root = byId("stage");
    this.video = byId("video");
    this.overlay = byId("overlay");
    this.slots = new Map();
    this.badgeText = this.noteText = "";
    for (const event of ["loadedmetadata", "resize"]) this.video.addEventListener(event, () => this.takeShape());
  }

  /** Give the stage the aspect ratio of the picture. */
  takeShape() {
    const { videoWidth: width, videoHeight: height } = this.video;
    if (width && height) this.root.style.setProperty("--ratio", String(width / height));
  }

  /** Show a state: `live` and `paused` show the picture, all others a card with a message. */
  enter(state, { title = "", text = "", button = "", error = false, samples = false } = {}) {
    this.state = state;
    Object.assign(this.root.dataset, { state, kind: error ? "error" : "calm" });
    const showsPicture = WITH_PICTURE.includes(state);
    const hadFocus = [byId("state"), byId("controls")].some((part) => part.contains(document.activeElement));
    byId("state").hidden = showsPicture;
    byId("controls").hidden = byId("stats").hidden = !showsPicture;
    setText(byId("state-title"), title);
    setText(byId("state-text"), text);
    byId("start").hidden = !button;
    setText(byId("start-text"), button);
    byId("samples").hidden = !samples;
    if (title) announce(`${title}. ${text}`);
    if (hadFocus && !showsPicture) (button ? byId("start") : byId("state-title")).focus();
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
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
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

  clear() {
    this.slots.clear();
    this.badgeText = this.noteText = "";
    this.showMessage();
    this.overlay.getContext("2d").clearRect(0, 0, this.overlay.width, this.overlay.height);
  }

  /** Draw `shown` (of Motion, in pixels of a frame of `size`) over the picture, which is fitted in as `object-fit: contain`. */
  draw(shown, size, { mirrored, landmarks }) {
    const { overlay: canvas, slots } = this;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
    resize(canvas, width, height);
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, width, height);
    const scale = Math.min(width / size.width, height / size.height);
    const [pictureWidth, pictureHeight] = [size.width * scale, size.height * scale];
    const area = { x: (width - pictureWidth) / 2, y: (height - pictureHeight) / 2, width: pictureWidth, height: pictureHeight };
    const above = byId(document.fullscreenElement ? "people" : "stats");
    const [x, y, wide, tall] = ["offsetLeft", "offsetTop", "offsetWidth", "offsetHeight"].map((side) => ratio * above[side]);
    const taken = [{ x, y, width: wide, height: tall }];
    drawFaces(context, placed(shown, size, area, mirrored), { unit: Math.max(ratio, width / (document.fullscreenElement ? 640 : 900)), area, landmarks, slots, taken });
  }

  /** Draw the picture with its faces, as displayed but without margins, on a canvas of the size of the video. */
  compose(canvas, shown, size, { mirrored, landmarks }) {
    const { videoWidth: width, videoHeight: height } = this.video;
    resize(canvas, width, height);
    const context = canvas.getContext("2d");
    context.save();
    if (mirrored) context.transform(-1, 0, 0, 1, width, 0);
    context.drawImage(this.video, 0, 0, width, height);
    context.restore();
    const area = { x: 0, y: 0, width, height };
    drawFaces(context, placed(shown, size, area, mirrored), { unit: Math.max(1, width / 700), area, landmarks });
  }
}
