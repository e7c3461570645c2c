// Smoothing of probabilities over time, and a label that does not flicker: the rules of app/inference/tracking.py.

import { LABELS, ranked } from "./labels.js";

const LEAD = 0.08;
const FORGOTTEN_MS = 2000;

export class Steady {
  constructor() {
    this.settleMs = 350;
    this.threshold = 0;
    this.tracks = new Map();
  }

  clear() {
    this.tracks.clear();
  }

  /** Faces of one frame, taken at `at` ms, with smoothed probabilities and a steady label. */
  update(faces, at) {
    for (const [track, held] of this.tracks) if (at - held.at > FORGOTTEN_MS) this.tracks.delete(track);
    return faces.map((face) => {
      const held = this.tracks.get(face.track);
      const next = held ? this.follow(held, face, at) : this.begin(face, at);
      this.tracks.set(face.track, next);
      const { probabilities, label, sure } = next;
      return { ...face, probabilities, label, confidence: probabilities[label], uncertain: !sure };
    });
  }

  begin({ probabilities }, at) {
    const [label] = ranked(probabilities);
    return { probabilities, label, at, sure: probabilities[label] >= this.threshold };
  }

  follow(held, face, at) {
    const share = this.settleMs ? 1 - Math.exp(-Math.max(0, at - held.at) / this.settleMs) : 1;
    const blend = (label) => held.probabilities[label] + share * (face.probabilities[label] - held.probabilities[label]);
    const probabilities = Object.fromEntries(LABELS.map((label) => [label, blend(label)]));
    const [best] = ranked(probabilities);
    const label = probabilities[best] - probabilities[held.label] >= LEAD ? best : held.label;
    // hysteresis for `uncertain`, as for the label
    const edge = this.threshold + (held.sure ? -LEAD / 2 : LEAD / 2);
    return { probabilities, label, at, sure: probabilities[label] >= edge };
  }
}
