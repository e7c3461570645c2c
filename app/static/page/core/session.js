// A recorded session: the results of each person over time. It stays in this browser until it is saved or deleted.

import { LABELS, UNCERTAIN } from "./labels.js";
import { History } from "./history.js";
import { table } from "./exports.js";

const columns = () => ["seconds", "person", "label", "uncertain", "confidence", "x", "y", "width", "height", ...LABELS.map((label) => `p_${label}`), "corrected", "reasons", "agreement"];

export class Session {
  constructor({ date = new Date(), rows = [], frames = 0, seconds = 0 } = {}) {
    this.date = date;
    this.rows = rows;
    this.frames = frames;
    this.seconds = seconds;
    this.startedAt = performance.now();
  }

  /** Of parts that were kept while it was recorded. */
  static of(parts) {
    const { date, frames, seconds } = parts.at(-1);
    return new Session({ date, frames, seconds, rows: parts.flatMap(({ rows }) => rows) });
  }

  /** Add the faces of one frame. */
  add(faces, now) {
    this.frames++;
    this.seconds = (now - this.startedAt) / 1000;
    for (const face of faces) this.rows.push(rowOf(face, this.seconds));
  }

  /** Seconds per expression and person: [{person, number, history, seconds: {happiness: 3.2, ...}, total}]. */
  summary() {
    const histories = new Map();
    for (const row of this.rows) {
      if (!histories.has(row.person)) histories.set(row.person, new History(Infinity));
      const probabilities = Object.fromEntries(LABELS.map((label) => [label, row[`p_${label}`]]));
      histories.get(row.person).add({ ...row, probabilities }, 1000 * row.seconds);
    }
    return [...histories].map(([person, history]) => {
      const held = Object.fromEntries(history.seconds(1000 * this.seconds, 0));
      const seconds = Object.fromEntries([...LABELS, UNCERTAIN].map((label) => [label, held[label] ?? 0]));
      return { person, number: person.split(" ")[1], history, seconds, total: Object.values(seconds).reduce((sum, one) => sum + one, 0) };
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

function rowOf(face, seconds) {
  const shares = Object.fromEntries(LABELS.map((label) => [`p_${label}`, round(face.probabilities[label])]));
  const { label, uncertain, corrected } = face;
  return { seconds: round(seconds), person: `Person ${face.track}`, label, uncertain, confidence: round(face.confidence), ...mapped(face.box), ...shares, corrected, reasons: face.reasons.join(" "), agreement: face.agreement == null ? null : round(face.agreement) };
}
