// The annotated video of a session, made in the browser by MediaRecorder.

import { withDuration } from "../core/webm.js";

// MP4 first: it states its duration, and most programs open it
const TYPES = ["video/mp4;codecs=avc1.42E028", "video/webm;codecs=vp9", "video/webm;codecs=vp8", "video/webm", "video/mp4"];
const FRAMES_PER_S = 25;
const PART_MS = 1000; // MP4 is written from key frame to key frame
const BITS_PER_S = 4_000_000;

export class VideoRecorder {
  constructor() {
    this.canvas = document.createElement("canvas");
    this.slots = new Map();
  }

  /** Start recording; the first picture must be on the canvas. `added(part)` gets a part of the file every second. */
  start(added) {
    const type = globalThis.MediaRecorder && TYPES.find((one) => MediaRecorder.isTypeSupported(one));
    if (!type) return;
    this.media = this.canvas.captureStream(FRAMES_PER_S);
    this.recorder = new MediaRecorder(this.media, { mimeType: type, videoBitsPerSecond: BITS_PER_S, videoKeyFrameIntervalDuration: PART_MS });
    this.recorder.ondataavailable = ({ data }) => data.size && added(data);
    this.recorder.start(PART_MS);
  }

  /** Stop, after the last part has been added. */
  async stop() {
    if (this.recorder && this.recorder.state !== "inactive") {
      await new Promise((done) => {
        this.recorder.onstop = done;
        this.recorder.stop();
      });
    }
    this.media?.getTracks().forEach((track) => track.stop());
  }
}

/** The video of its parts, or null if this browser cannot record one. */
export async function videoOf(parts, seconds) {
  return parts.length ? withDuration(new Blob(parts, { type: parts[0].type.split(";")[0] }), seconds) : null;
}
