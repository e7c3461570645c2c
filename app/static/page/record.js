// A recording of the live view: the picture with its boxes as a video, and the labels as a table. Both are downloaded
// when it ends; nothing is kept in the browser.

import { byId, clock, download, setText } from "./dom.js";
import { LABELS } from "./labels.js";

// MP4 first: it states its duration, and most programs open it
const VIDEO_TYPES = [
  "video/mp4;codecs=avc1.42E028",
  "video/webm;codecs=vp9",
  "video/webm;codecs=vp8",
  "video/webm",
  "video/mp4",
];
const FRAMES_PER_S = 25;
const BITS_PER_S = 4_000_000;

/** The recording that a button starts and ends; an observer of the live view. */
export class Recording {
  constructor(live) {
    this.live = live;
    live.observers.push(this);
    byId("record").addEventListener("click", () => (this.began ? this.stop() : this.start()));
  }

  start() {
    this.began = performance.now();
    this.rows = [];
    this.canvas = document.createElement("canvas");
    this.live.compose(this.canvas);
    const type = globalThis.MediaRecorder && VIDEO_TYPES.find((one) => MediaRecorder.isTypeSupported(one));
    if (type) {
      this.recorder = new MediaRecorder(this.canvas.captureStream(FRAMES_PER_S), {
        mimeType: type,
        videoBitsPerSecond: BITS_PER_S,
      });
      this.recorder.ondataavailable = ({ data }) =>
        download(data, `${this.name}.${data.type.includes("mp4") ? "mp4" : "webm"}`);
      this.recorder.start(); // the whole video comes at its end
    }
    this.name = `mien-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}`;
    document.documentElement.classList.add("recording");
    this.show();
  }

  people(faces, now) {
    const seconds = (now - this.began) / 1000;
    if (this.began)
      this.rows.push(
        ...faces.map((face) => [seconds.toFixed(2), face.track, face.label, face.uncertain, ...numbersOf(face)]),
      );
  }

  drawn() {
    if (!this.began) return;
    this.live.compose(this.canvas);
    this.show();
  }

  show() {
    setText(byId("record-text"), this.began ? `Finish ${clock((performance.now() - this.began) / 1000)}` : "Record");
    byId("record").setAttribute("aria-pressed", String(Boolean(this.began)));
  }

  /** End it, if there is one, and download both files. */
  stop() {
    if (!this.began) return;
    this.began = null;
    if (this.recorder?.state === "recording") this.recorder.stop();
    this.recorder = null;
    const names = [
      "seconds",
      "person",
      "label",
      "uncertain",
      "confidence",
      ...LABELS.map((label) => `p_${label}`),
      "x",
      "y",
      "width",
      "height",
    ];
    const lines = [names, ...this.rows].map((row) => `${row.join(",")}\n`);
    download(new Blob(lines, { type: "text/csv" }), `${this.name}.csv`);
    document.documentElement.classList.remove("recording");
    this.show();
  }
}

function numbersOf({ confidence, probabilities, box }) {
  const shares = [confidence, ...LABELS.map((label) => probabilities[label])].map((value) => value.toFixed(4));
  return [...shares, ...[box.x, box.y, box.width, box.height].map((value) => value.toFixed(1))];
}
