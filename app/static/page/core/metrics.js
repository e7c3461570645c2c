// Figures of a stream, and what is worth telling to those who listen to it.

import { spoken } from "./labels.js";

const WINDOW_MS = 2000;
const STALE_MS = 10_000;
const NONE = "–";

const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** Frame rate, round trip and number of faces. */
export class Metrics {
  constructor() {
    this.clear();
  }

  clear() {
    this.results = []; // [time of arrival, milliseconds between capture and result]
    this.count = 0;
  }

  add(now, latencyMs, count) {
    this.results.push([now, latencyMs]);
    this.count = count;
  }

  /** Texts of the last two seconds, or of the last two results of a slow service: {fps, latency, count}. */
  figures(now) {
    const age = () => now - this.results[0][0];
    while (this.results.length && (age() > STALE_MS || (this.results.length > 2 && age() > WINDOW_MS))) this.results.shift();
    if (!this.results.length) return { fps: NONE, latency: NONE, count: NONE };
    const span = this.results.at(-1)[0] - this.results[0][0];
    const sorted = this.results.map(([, ms]) => ms).sort((one, other) => one - other);
    const fps = span ? ((1000 * (sorted.length - 1)) / span).toFixed(1) : NONE;
    return { fps, latency: duration(sorted[Math.floor(sorted.length / 2)]), count: String(this.count) };
  }
}

const STEADY_MS = 1200;
const QUIET_MS = 5000;

/** Labels that have been stable for a moment, at most every few seconds. */
export class Announcer {
  constructor() {
    this.said = this.scene = "";
    this.saidAt = -QUIET_MS;
    this.since = 0;
  }

  /** What to say about the people of a result; empty most of the time. */
  textOf(people, now) {
    const scene = people.map((face) => `${face.track} ${face.label}`).sort().join();
    if (scene !== this.scene) Object.assign(this, { scene, since: now });
    if (scene === this.said || now - this.since < STEADY_MS || now - this.saidAt < QUIET_MS) return "";
    Object.assign(this, { said: scene, saidAt: now });
    return people.map((face) => `Person ${face.track}: ${spoken(face)}`).join(". ") || "No face in view";
  }
}
