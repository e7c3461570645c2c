// Frame rate and round trip of the live view, and announcements for screen readers.

import { announce, setText } from "./dom.js";
import { spoken } from "../core/labels.js";

const WINDOW_MS = 2000;
const STALE_MS = 10_000;
const REFRESH_MS = 500;

const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

export class LiveMetrics {
  constructor() {
    this.clear();
  }

  clear() {
    this.results = []; // [time of arrival, milliseconds between capture and result]
    this.shownAt = 0;
  }

  add(now, latencyMs) {
    this.results.push([now, latencyMs]);
  }

  /** Keep the results of the last two seconds, but at least two from a slow service. */
  trim(now) {
    const age = () => now - this.results[0][0];
    while (this.results.length && (age() > STALE_MS || (this.results.length > 2 && age() > WINDOW_MS))) this.results.shift();
  }

  show(fps, latency, count, now) {
    if (now - this.shownAt < REFRESH_MS) return;
    this.shownAt = now;
    this.trim(now);
    const span = this.results.length > 1 ? this.results.at(-1)[0] - this.results[0][0] : 0;
    const sorted = this.results.map(([, ms]) => ms).sort((one, other) => one - other);
    setText(fps, span ? (((this.results.length - 1) / span) * 1000).toFixed(1) : "–");
    if (!sorted.length) setText(count, "–");
    setText(latency, sorted.length ? duration(sorted[Math.floor(sorted.length / 2)]) : "–");
  }
}

const STEADY_MS = 1200;
const QUIET_MS = 5000;

/** Announces labels that have been stable for a moment, at most every few seconds. */
export class Announcer {
  constructor() {
    this.said = "";
    this.saidAt = -QUIET_MS;
    this.scene = "";
    this.since = 0;
  }

  consider(faces, now) {
    const scene = faces.map((face) => `${face.track} ${face.label}`).sort().join();
    if (scene !== this.scene) Object.assign(this, { scene, since: now });
    if (scene === this.said || now - this.since < STEADY_MS || now - this.saidAt < QUIET_MS) return;
    Object.assign(this, { said: scene, saidAt: now });
    announce(faces.map((face) => `Person ${face.track}: ${spoken(face)}`).join(". ") || "No face in view");
  }
}
