// Frames of the playing video to a labeler, at the rate that it can process, and its results.

import { resize } from "./dom.js";

const FRAME_PX = 640; // long side of a sent frame, as in the detector's first pass
const MIN_BETWEEN_MS = 1000 / 25;
const EARLY_MS = 8; // tolerance, because camera frames arrive every 33 ms

export class Feed {
  /** `on`: of the stream (stream.js); and `sent(canvas, at)`, which is awaited, before a frame is sent. */
  constructor(video, on) {
    this.video = video;
    this.on = on;
    this.sentAt = 0;
    this.running = null;
    this.canvas = document.createElement("canvas");
  }

  /** Send frames to a labeler from now on: the service, or that of local mode. */
  use(labeler) {
    this.stream?.close();
    this.stream = labeler.stream(this.on);
  }

  /** Look at each frame that the video shows. */
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
    this.stream?.close();
  }

  look() {
    const now = performance.now();
    if (this.sending || now - this.sentAt < MIN_BETWEEN_MS - EARLY_MS || !this.stream.ready(now)) return;
    const { videoWidth, videoHeight } = this.video;
    if (!videoWidth) return;
    const scale = Math.min(1, FRAME_PX / Math.max(videoWidth, videoHeight));
    const [width, height] = [Math.round(videoWidth * scale), Math.round(videoHeight * scale)];
    resize(this.canvas, width, height);
    this.canvas.getContext("2d").drawImage(this.video, 0, 0, width, height);
    this.sentAt = now;
    this.sending = this.send(now).finally(() => (this.sending = null));
  }

  async send(at) {
    const { stream, canvas } = this;
    const frame = await stream.encode(canvas);
    await this.on.sent(canvas, at);
    if (frame && stream.wanted && stream === this.stream) stream.send(frame, at);
  }
}
