// <mien-camera>: a camera, or the video of `src`, with a box and a label for each face, for other pages. It starts with a
// click on its button or with start(), and dispatches `faces` events whose `detail` is the faces of a frame. `base` is the
// address of the package's folder, if a bundler moves the modules.

import { openCamera } from "./camera.js";
import { element, setText } from "./dom.js";
import { Feed } from "./feed.js";
import { Scene } from "../core/scene.js";
import { drawOver } from "./stage.js";

const STYLE = `
  :host { display: inline-grid; position: relative; width: 640px; max-width: 100%; aspect-ratio: 4 / 3; background: #0a0d0d; place-items: center; }
  video, canvas { position: absolute; inset: 0; width: 100%; height: 100%; object-fit: contain; }
  .mirrored { transform: scaleX(-1); }
  button { position: relative; z-index: 1; font: 600 1rem system-ui, sans-serif; padding: 12px 22px; }
  button.running { position: absolute; top: 8px; right: 8px; padding: 6px 14px; }
  p { position: absolute; bottom: 8px; margin: 0; padding: 2px 12px; color: #fff; background: #0a0d0d; font: 0.9rem system-ui, sans-serif; }
  p:empty { display: none; }`;

/** Define the element; `labeler({base})` resolves to the labeler. */
export function defineCamera(labeler) {
  class MienCamera extends HTMLElement {
    static observedAttributes = ["src"];

    constructor() {
      super();
      this.video = element("video", { playsinline: true, muted: true });
      this.video.muted = true;
      this.canvas = element("canvas", { "aria-hidden": "true" });
      this.button = element("button");
      this.note = element("p", { role: "status" });
      this.running = this.media = null;
      this.button.addEventListener("click", () => (this.running ? this.stop() : this.start()));
      const sheet = new CSSStyleSheet();
      sheet.replaceSync(STYLE);
      const root = this.attachShadow({ mode: "open" });
      root.adoptedStyleSheets = [sheet];
      root.append(this.video, this.canvas, this.button, this.note);
      this.showButton();
    }

    attributeChangedCallback() {
      this.showButton();
    }

    showButton() {
      this.button.classList.toggle("running", Boolean(this.running));
      setText(this.button, this.running ? "Stop" : this.hasAttribute("src") ? "Play video" : "Start camera");
    }

    disconnectedCallback() {
      this.stop();
    }

    async start() {
      this.stop();
      const running = (this.running = {});
      this.showButton();
      try {
        this.note.textContent = "Loading the models…";
        const local = await labeler({ base: this.getAttribute("base") });
        await local.open();
        const address = this.getAttribute("src");
        const media = address ? null : await openCamera();
        if (running !== this.running) return media?.getTracks().forEach((track) => track.stop());
        this.media = media;
        this.scene = new Scene();
        this.slots = new Map();
        this.scene.tracker.threshold = local.facts.classifier.confidence_threshold;
        this.video.classList.toggle("mirrored", !address);
        if (address) Object.assign(this.video, { src: address, loop: true });
        else this.video.srcObject = media;
        await this.video.play();
        if (running !== this.running) return;
        this.note.textContent = "";
        this.follow(local, running);
      } catch (error) {
        if (running !== this.running) return; // stop() or another start() ended it
        this.stop();
        this.note.textContent = error.text ? `${error.title}. ${error.text}` : error.message;
      }
    }

    follow(local, running) {
      this.feed = new Feed(this.video, {
        answer: (result, at) => this.show(result, at), open: () => {}, loading: () => {}, failed: (why) => (this.note.textContent = why),
      });
      this.feed.use(local);
      this.feed.stream.open();
      this.feed.start();
      const draw = (now) => {
        if (running !== this.running) return;
        const mirrored = this.video.classList.contains("mirrored");
        drawOver(this.canvas, this.scene.motion.at(now), this.scene.size, { mirrored, slots: this.slots });
        requestAnimationFrame(draw);
      };
      requestAnimationFrame(draw);
    }

    show(result, at) {
      const people = this.scene.update(result, at, performance.now());
      this.dispatchEvent(new CustomEvent("faces", { detail: people }));
    }

    /** Stop, and release the camera. */
    stop() {
      this.running = null;
      this.feed?.stop();
      this.media?.getTracks().forEach((track) => track.stop());
      this.media = null;
      this.video.srcObject = null;
      this.video.removeAttribute("src");
      this.canvas.getContext("2d").clearRect(0, 0, this.canvas.width, this.canvas.height);
      this.showButton();
    }
  }
  if (!customElements.get("mien-camera")) customElements.define("mien-camera", MienCamera);
}
