// People of a stream: faces matched from frame to frame, probabilities smoothed over time, and a label that does not
// flicker. The rules are those of app/inference/tracker.py, which explains them; their numbers are in facts.json. The
// page adds two, as somebody watches: who comes after the first people gets a number after `newPersonS`, because false
// detections are brief and a face that comes out from behind another one can turn out to be a known person; and
// `uncertain` changes at most once in `holdS`.

import { dot, unit } from "./descriptor.js";
import { LABELS, facts, ranked, withProbabilities } from "./labels.js";
import { shared } from "./tags.js";

const SURE_SCORE = 0.9;

export class Tracker {
  constructor() {
    this.rules = facts.tracking;
    this.newPersonS = this.holdS = 1;
    this.threshold = 0;
    this.tracks = [];
    this.people = 0;
    this.updated = this.cutAt = -Infinity;
    this.clock = 0;
  }

  /**
   * People of one frame, taken at `at` ms, with smoothed probabilities and a steady label; `track` becomes the number
   * of the person, counted from 1. A face may have a `descriptor`. `cut`: whether another scene has begun.
   */
  update(faces, at, cut = false) {
    const { rules } = this;
    const now = at / 1000;
    const areFirst = this.people === 0;
    if (cut) this.cutAt = now;
    this.clock += Math.min(Math.max(now - this.updated, 0), rules.pause_s);
    const kept = Math.max(rules.return_s, rules.lost_s, rules.slow_s);
    this.tracks = this.tracks.filter((track) => this.clock - track.seenClock <= kept);
    const seen = faces.map((face) => ({
      ...face,
      covered: faces.some((other) => other !== face && coveredShare(face.box, other.box, rules.head) > rules.covered),
    }));
    const matches = assign(
      seen.map((face) => this.tracks.map((track) => this.cost(track, face, now))),
      this.tracks.length,
      rules.new_track_cost,
    );
    const tracks = seen.map((face, index) => this.tracks[matches[index]] ?? this.begin(face, at));
    seen.forEach((face, index) => (tracks[index] = this.reunite(tracks, index, face, now)));
    const people = seen.flatMap((face, index) => {
      const track = tracks[index];
      this.move(track, face, now);
      this.smooth(track, face, now);
      if (track.seen !== this.updated && track.seen !== now) track.since = at;
      Object.assign(track, { seen: now, seenClock: this.clock });
      const isSure = face.detection_score >= SURE_SCORE && !track.beganCovered;
      const waitS = !areFirst
        ? Math.max(this.newPersonS, isSure ? 0 : rules.confirmed_s)
        : isSure
          ? 0
          : rules.confirmed_s;
      if (at - track.since >= 1000 * waitS) track.number ??= ++this.people;
      const { probabilities, agreement, label, sure, number } = track;
      const { descriptor, covered, ...rest } = face; // these stay here
      return number
        ? [
            {
              ...rest,
              track: number,
              probabilities,
              label,
              agreement,
              confidence: probabilities[label],
              uncertain: !sure,
              reasons: withProbabilities(face.reasons ?? [], probabilities),
            },
          ]
        : [];
    });
    this.updated = now;
    return people;
  }

  /** Cost of a match: distance from the expected position and difference of the faces; Infinity if impossible. */
  cost(track, { box, descriptor, covered }, now) {
    const { rules } = this;
    const passed = now - track.seen;
    const ahead = Math.min(passed, rules.pause_s);
    const [to, from, size, before] = [center(box), center(track.box), sizeOf(box), sizeOf(track.box)];
    const off = [0, 1].map((axis) => to[axis] - from[axis] - ahead * track.velocity[axis]);
    const reach = Math.min(rules.reach + rules.reach_per_s * passed, rules.max_reach);
    const distance = Math.hypot(...off) / (Math.sqrt(size * before) * reach);
    const inLastFrame = track.seen === this.updated;
    const held = inLastFrame ? rules.slow_s : rules.lost_s;
    const isBeforeCut = track.seen < this.cutAt;
    const isNear =
      !isBeforeCut &&
      distance <= 1 &&
      passed <= held &&
      size / before <= rules.max_growth &&
      size / before >= 1 / rules.max_growth;
    const similarity = similarityOf(track, descriptor);
    if (similarity === undefined) return isNear ? distance : Infinity;
    const isSame =
      similarity >= (isBeforeCut ? rules.cut_face : rules.same_face) && this.clock - track.seenClock <= rules.return_s;
    const continues = inLastFrame && passed <= rules.pause_s && similarity >= rules.other_face;
    if (!(isSame || (isNear && (continues || covered)))) return Infinity;
    return Math.min(distance, 1) + Math.min(2 * (1 - similarity), 1.9);
  }

  /** The track of a face, or that of a person who was gone when it began and whom the face looks like by now. */
  reunite(tracks, index, { descriptor, covered }, now) {
    const { rules } = this;
    const track = tracks[index];
    if (covered || now - track.begun > rules.merge_s) return track;
    const gone = this.tracks
      .filter((old) => old.seen < track.begun && this.clock - old.seenClock <= rules.return_s && !tracks.includes(old))
      .map((old) => [similarityOf(old, descriptor), old])
      .filter(([similarity, old]) => similarity >= (old.seen < this.cutAt ? rules.cut_face : rules.gone_face));
    if (!gone.length) return track;
    this.tracks = this.tracks.filter((one) => one !== track);
    return gone.sort(([one], [other]) => other - one)[0][1];
  }

  begin({ box, probabilities, covered }, at) {
    const [label] = ranked(probabilities);
    const track = {
      box,
      beganCovered: covered,
      probabilities,
      label,
      sure: probabilities[label] >= this.threshold,
      begun: at / 1000,
      seen: at / 1000,
      since: at,
      sureAt: -Infinity,
      seenClock: this.clock,
      velocity: [0, 0],
    };
    this.tracks.push(track);
    return track;
  }

  /** Take over the position of a face; its velocity and descriptor only if no other face covers it. */
  move(track, { box, descriptor, covered }, now) {
    const passed = now - track.seen;
    if (passed > 0 && passed <= this.rules.lost_s && !covered) {
      const weight = 1 - Math.exp(-passed / this.rules.velocity_s);
      const [to, from] = [center(box), center(track.box)];
      track.velocity = track.velocity.map((speed, axis) => speed + weight * ((to[axis] - from[axis]) / passed - speed));
    }
    track.box = box;
    if (!descriptor || covered) return;
    track.newest = descriptor;
    track.mean = track.mean
      ? unit(track.mean.map((value, index) => value + 0.1 * (descriptor[index] - value)))
      : descriptor;
  }

  smooth(track, face, now) {
    const { smoothing_s: smoothing, lead } = this.rules;
    const share = smoothing ? 1 - Math.exp(-Math.max(0, now - track.seen) / smoothing) : 1;
    const blended = (old, newest) => old + share * (newest - old);
    track.probabilities = Object.fromEntries(
      LABELS.map((label) => [label, blended(track.probabilities[label], face.probabilities[label])]),
    );
    const [best] = ranked(track.probabilities);
    if (track.probabilities[best] - track.probabilities[track.label] >= lead && best !== track.label)
      Object.assign(track, { label: best, agreement: undefined, sureAt: -Infinity });
    // the agreement of a frame is that with its own label
    if (face.label === track.label && face.agreement != null)
      track.agreement = blended(track.agreement ?? face.agreement, face.agreement);
    // hysteresis for `uncertain`, as for the label
    const sure = track.probabilities[track.label] >= this.threshold + (track.sure ? -lead / 2 : lead / 2);
    if (sure !== track.sure && now - track.sureAt >= this.holdS) Object.assign(track, { sure, sureAt: now });
  }
}

/** The cheapest assignment of rows to `real` columns, Infinity if impossible: the column of each row, or undefined. */
export function assign(costs, real, unmatched) {
  const start = real + costs.length;
  const rowOf = new Array(start + 1).fill(-1);
  const [rowPrice, columnPrice] = [costs.map(() => 0), new Array(start + 1).fill(0)];
  const costOf = (row, column) => (column < real ? Math.min(costs[row][column], 1e6) : unmatched);
  for (let row = 0; row < costs.length; row++) {
    const [slack, previous, visited] = [new Array(start).fill(Infinity), new Array(start), new Set()];
    let column = start;
    rowOf[start] = row;
    while (rowOf[column] >= 0) {
      visited.add(column);
      const current = rowOf[column];
      let next = -1;
      for (let other = 0; other < start; other++) {
        if (visited.has(other)) continue;
        const reduced = costOf(current, other) - rowPrice[current] - columnPrice[other];
        if (reduced < slack[other]) [slack[other], previous[other]] = [reduced, column];
        if (next < 0 || slack[other] < slack[next]) next = other;
      }
      const step = slack[next];
      for (const other of visited) {
        rowPrice[rowOf[other]] += step;
        columnPrice[other] -= step;
      }
      for (let other = 0; other < start; other++) if (!visited.has(other)) slack[other] -= step;
      column = next;
    }
    while (column !== start) {
      rowOf[column] = rowOf[previous[column]];
      column = previous[column];
    }
    rowOf[start] = -1;
  }
  const columns = costs.map((_, row) => rowOf.indexOf(row));
  return columns.map((column) => (column < real ? column : undefined));
}

const similarityOf = ({ newest, mean }, descriptor) =>
  descriptor && newest ? Math.max(dot(newest, descriptor), dot(mean, descriptor)) : undefined;
const center = ({ x, y, width, height }) => [x + width / 2, y + height / 2];
const sizeOf = ({ width, height }) => Math.sqrt(width * height);

/** A box that is larger around its center. */
function grown({ x, y, width, height }, by) {
  const more = (by - 1) / 2;
  return { x: x - more * width, y: y - more * height, width: by * width, height: by * height };
}

/** Area that two heads share, as a part of the smaller one; `head`: their width in face widths. */
function coveredShare(face, other, head) {
  const [one, beside] = [grown(face, head), grown(other, head)];
  return shared(one, beside) / Math.min(one.width * one.height, beside.width * beside.height);
}
