// Frames per second, round trip, and announcements for screen readers.

import { announce, setText } from "./dom.js";
import { spoken } from "./labels.js";

const WINDOW_MS = 2000;
const STALE_MS = 10_000;
const REFRESH_MS = 500;

const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

export class Figures {
  constructor() {
    this.clear();
  }

  clear() {
    this.answers = []; // [when it came, milliseconds from taking the frame to having its answer]
    this.shownAt = 0;
  }

  add(now, latencyMs) {
    this.answers.push([now, latencyMs]);
  }

  /** Keep the answers of the last two seconds; of a slow service the last two. */
  trim(now) {
    const age = () => now - this.answers[0][0];
    while (this.answers.length && (age() > STALE_MS || (this.answers.length > 2 && age() > WINDOW_MS))) this.answers.shift();
  }

  show(fps, latency, now) {
    if (now - this.shownAt < REFRESH_MS) return;
    this.shownAt = now;
    this.trim(now);
    const span = this.answers.length > 1 ? this.answers.at(-1)[0] - this.answers[0][0] : 0;
    const sorted = this.answers.map(([, ms]) => ms).sort((one, other) => one - other);
    setText(fps, span ? (((this.answers.length - 1) / span) * 1000).toFixed(1) : "–");
    setText(latency, sorted.length ? duration(sorted[Math.floor(sorted.length / 2)]) : "–");
  }
}

const STEADY_MS = 1200;
const QUIET_MS = 5000;

/** Announces labels that have held for a moment, at most every few seconds. */
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
