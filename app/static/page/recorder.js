// The annotated video of a session, made in the browser by MediaRecorder.

const TYPES = ["video/webm;codecs=vp9", "video/webm;codecs=vp8", "video/webm", "video/mp4"];
const FRAMES_PER_S = 25;
const BITS_PER_S = 2_500_000;

export class VideoRecorder {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.slots = new Map();
    this.parts = [];
  }

  static get type() {
    return globalThis.MediaRecorder && TYPES.find((type) => MediaRecorder.isTypeSupported(type));
  }

  /** Start recording; the first picture must be on the canvas. */
  start() {
    if (!VideoRecorder.type) return;
    this.media = this.canvas.captureStream(FRAMES_PER_S);
    this.recorder = new MediaRecorder(this.media, { mimeType: VideoRecorder.type, videoBitsPerSecond: BITS_PER_S });
    this.recorder.ondataavailable = ({ data }) => data.size && this.parts.push(data);
    this.recorder.start(1000);
  }

  /** The video, or null if this browser cannot record one. */
  async stop() {
    if (!this.recorder) return null;
    if (this.recorder.state !== "inactive") {
      await new Promise((done) => {
        this.recorder.onstop = done;
        this.recorder.stop();
      });
    }
    this.media.getTracks().forEach((track) => track.stop());
    return this.parts.length ? new Blob(this.parts, { type: this.recorder.mimeType.split(";")[0] }) : null;
  }
}
