// Frames of the playing video, at the rate that the stream can process.

import { resize } from "./dom.js";

const FRAME_PX = 640; // long side of a sent frame, as in the detector's first pass
const MIN_BETWEEN_MS = 1000 / 25;
const EARLY_MS = 8; // tolerance, because camera frames arrive every 33 ms

export class Frames {
  /** `ready(now)`: whether a frame may be taken; `taken(canvas, at)`: called with each one, and awaited. */
  constructor(video, { ready, taken }) {
    this.video = video;
    this.ready = ready;
    this.taken = taken;
    this.takenAt = 0;
    this.running = null;
    this.canvas = document.createElement("canvas");
  }

  start() {
    const running = (this.running = {});
    const next = this.video.requestVideoFrameCallback
      ? (look) => this.video.requestVideoFrameCallback(look)
      : (look) => requestAnimationFrame(look);
    const look = () => {
      if (running !== this.running) return;
      this.look();
      next(look);
    };
    next(look);
  }

  stop() {
    this.running = null;
  }

  look() {
    const now = performance.now();
    if (this.encoding || now - this.takenAt < MIN_BETWEEN_MS - EARLY_MS || !this.ready(now)) return;
    const { videoWidth, videoHeight } = this.video;
    if (!videoWidth) return;
    const scale = Math.min(1, FRAME_PX / Math.max(videoWidth, videoHeight));
    const [width, height] = [Math.round(videoWidth * scale), Math.round(videoHeight * scale)];
    resize(this.canvas, width, height);
    this.canvas.getContext("2d").drawImage(this.video, 0, 0, width, height);
    this.takenAt = now;
    this.pass(now);
  }

  async pass(takenAt) {
    this.encoding = true;
    try {
      await this.taken(this.canvas, takenAt);
    } finally {
      this.encoding = false;
    }
  }
}
