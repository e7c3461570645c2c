// From the playing video to the people in it: frames to the labeler, its results to the tracker, and what to say about both.

import { Feed } from "./feed.js";
import { Looks } from "./looks.js";
import { Metrics } from "../core/metrics.js";
import { Scene } from "../core/scene.js";

const SLOW_RETRY_MS = 1000;

export class Labeling {
  /**
   * `on.people(faces, now, picture)`: of a result, with the pixels of its frame if they are known; `on.says(text)`: a message, or
   * none; `on.stalled()`: nothing arrives; `on.reconnected()`: the service may run another model now.
   */
  constructor(video, on) {
    this.on = on;
    this.scene = new Scene();
    this.looks = new Looks();
    this.metrics = new Metrics();
    this.source = null;
    this.feed = new Feed(video, {
      sent: (canvas, at) => this.looks.keep(canvas, at),
      answer: (result, at) => this.answered(result, at),
      open: () => this.opened(),
      lost: (retryMs, everOpen) => this.lost(retryMs, everOpen),
      loading: () => on.says("Loading the models…"),
      failed: (why) => on.says(`Labeling in this tab failed: ${why}`),
    });
  }

  start(source) {
    this.source = source;
    this.feed.start();
  }

  stop() {
    this.source = null;
    this.feed.stop();
    this.scene.clear();
    this.looks.clear();
    this.metrics.clear();
  }

  /** Send frames, or hold them back for now. */
  send(wanted) {
    const { stream } = this.feed;
    if (wanted === stream.wanted) return;
    if (!wanted) return stream.close();
    this.metrics.clear();
    this.on.says("");
    stream.open();
  }

  opened() {
    this.on.says("");
    if (this.isLost) this.on.reconnected();
    this.isLost = false;
  }

  async lost(retryMs, everOpen) {
    const { stream } = this.feed;
    this.scene.motion.clear();
    this.metrics.clear();
    this.on.stalled();
    if (everOpen) this.on.says("Connection lost, trying again…");
    else if (!this.isLost) this.on.says("Connecting…");
    this.isLost = true;
    const response = await fetch("v1/models").catch(() => null);
    if (!stream.wanted || stream !== this.feed.stream || stream.socket) return;
    if (response?.status === 401) this.on.says("The API key is no longer accepted: reload the page");
    if (!response && !everOpen) this.on.says("The service does not respond, trying again…");
    if (response?.ok && retryMs > SLOW_RETRY_MS) this.on.says("The service has no free streams now, or a proxy does not pass on WebSockets. Trying again…");
  }

  answered(result, at) {
    if (result.error) {
      this.looks.drop(at);
      return this.on.says(`Frames are not labeled: ${result.error.detail}`);
    }
    const now = performance.now();
    const cut = this.source.hasCuts && this.looks.isCut(at);
    const faces = this.scene.update({ ...result, faces: this.looks.describe(result.faces, at) }, at, now, cut);
    this.on.people(faces, now, this.looks.at(at));
    this.looks.drop(at);
    this.metrics.add(now, now - at, faces.length);
    this.on.says(this.source.trouble || (this.scene.isEmpty(now) ? "No face in view" : ""));
  }
}
