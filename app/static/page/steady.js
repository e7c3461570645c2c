// Smoothing of probabilities over time, and a label that does not flicker: the rules of app/inference/tracking.py.
// A face that the detector is less sure of counts as a person only after a moment, as false detections are brief.

import { LABELS, ranked } from "./labels.js";

const LEAD = 0.08;
const FORGOTTEN_MS = 2000;
const SURE_SCORE = 0.9;
const CONFIRMED_MS = 400;

export class Steady {
  constructor() {
    this.settleMs = 350;
    this.threshold = 0;
    this.tracks = new Map();
    this.people = 0;
  }

  clear() {
    this.tracks.clear();
    this.people = 0;
  }

  /**
   * People of one frame, taken at `at` ms, with smoothed probabilities and a steady label; `track` becomes the number of
   * the person, counted from 1. Left out: faces below SURE_SCORE that were not in all frames for CONFIRMED_MS.
   */
  update(faces, at) {
    const present = new Set(faces.map(({ track }) => track));
    for (const [track, held] of this.tracks) {
      if (!present.has(track) && (!held.number || at - held.at > FORGOTTEN_MS)) this.tracks.delete(track);
    }
    return faces.flatMap((face) => {
      const held = this.tracks.get(face.track);
      const next = held ? this.follow(held, face, at) : this.begin(face, at);
      if (face.detection_score >= SURE_SCORE || at - next.since >= CONFIRMED_MS) next.number ??= ++this.people;
      this.tracks.set(face.track, next);
      const { probabilities, label, sure, number } = next;
      return number ? [{ ...face, track: number, probabilities, label, confidence: probabilities[label], uncertain: !sure }] : [];
    });
  }

  begin({ probabilities }, at) {
    const [label] = ranked(probabilities);
    return { probabilities, label, at, since: at, sure: probabilities[label] >= this.threshold };
  }

  follow(held, face, at) {
    const share = this.settleMs ? 1 - Math.exp(-Math.max(0, at - held.at) / this.settleMs) : 1;
    const blend = (label) => held.probabilities[label] + share * (face.probabilities[label] - held.probabilities[label]);
    const probabilities = Object.fromEntries(LABELS.map((label) => [label, blend(label)]));
    const [best] = ranked(probabilities);
    const label = probabilities[best] - probabilities[held.label] >= LEAD ? best : held.label;
    // hysteresis for `uncertain`, as for the label
    const edge = this.threshold + (held.sure ? -LEAD / 2 : LEAD / 2);
    return { ...held, probabilities, label, at, sure: probabilities[label] >= edge };
  }
}
