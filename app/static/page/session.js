// A recorded session: the results of each person over time. It stays in this tab until it is saved or discarded.

import { LABELS, UNCERTAIN } from "./labels.js";
import { History } from "./timeline.js";
import { table } from "./exports.js";

const columns = () => ["seconds", "person", "label", "uncertain", "confidence", "x", "y", "width", "height", ...LABELS.map((label) => `p_${label}`)];

export class Session {
  constructor(now) {
    Object.assign(this, { startedAt: now, endedAt: now, frames: 0, rows: [], people: new Map() });
    this.date = new Date();
  }

  /** Add the faces of one frame. */
  add(faces, now) {
    this.frames++;
    this.endedAt = now;
    for (const face of faces) {
      const name = `Person ${face.track}`;
      if (!this.people.has(name)) this.people.set(name, { number: face.track, history: new History(Infinity) });
      this.people.get(name).history.add(face, now);
      this.rows.push(rowOf(face, name, (now - this.startedAt) / 1000));
    }
  }

  get seconds() {
    return (this.endedAt - this.startedAt) / 1000;
  }

  /** Seconds per expression and person: [{person, number, history, seconds: {happiness: 3.2, ...}, total}]. */
  summary() {
    return [...this.people].map(([person, { number, history }]) => {
      const held = Object.fromEntries(history.seconds(this.endedAt, this.startedAt));
      const seconds = Object.fromEntries([...LABELS, UNCERTAIN].map((label) => [label, held[label] ?? 0]));
      return { person, number, history, seconds, total: Object.values(seconds).reduce((sum, one) => sum + one, 0) };
    });
  }

  asCsv() {
    return table(columns(), this.rows);
  }

  asJson({ model, threshold }) {
    const people = this.summary().map(({ person, seconds, total }) => ({ person, total_s: round(total), seconds: mapped(seconds) }));
    const head = { started: this.date.toISOString(), seconds: round(this.seconds), frames: this.frames, model, confidence_threshold: threshold };
    return new Blob([`${JSON.stringify({ ...head, people, rows: this.rows }, null, 1)}\n`], { type: "application/json" });
  }
}

const round = (value) => Math.round(1000 * value) / 1000;
const mapped = (values) => Object.fromEntries(Object.entries(values).map(([name, value]) => [name, round(value)]));

function rowOf(face, person, seconds) {
  const shares = Object.fromEntries(LABELS.map((label) => [`p_${label}`, round(face.probabilities[label])]));
  return { seconds: round(seconds), person, label: face.label, uncertain: face.uncertain, confidence: round(face.confidence), ...mapped(face.box), ...shares };
}
