// Numbers of people from frame to frame, by overlap of their boxes: the matching of app/inference/tracking.py.

import { iou } from "./search.js";

const listed = ({ x, y, width, height }) => [x, y, width, height];

export class Numbers {
  /** `rules`: `tracking` of local.json. */
  constructor(rules) {
    Object.assign(this, { rules, tracks: [], next: 1, updated: -Infinity });
  }

  /** The faces of the next frame, each with the number of its person in `track`. */
  give(faces, seconds) {
    const { lost_s: lost, slow_s: slow } = this.rules;
    this.tracks = this.tracks.filter(({ seen }) => seconds - seen <= (seen === this.updated ? slow : lost));
    this.updated = seconds;
    const matches = this.match(faces);
    return faces.map((face, place) => {
      const track = matches.get(place) ?? this.begin();
      Object.assign(track, { box: listed(face.box), seen: seconds });
      return { ...face, track: track.number };
    });
  }

  begin() {
    const track = { number: this.next++ };
    this.tracks.push(track);
    return track;
  }

  /** Greedy matching, highest overlap first; each face and each track is used once. */
  match(faces) {
    const pairs = faces.flatMap(({ box }, place) => this.tracks.map((track) => ({ place, track, score: iou(listed(box), track.box) })));
    const matches = new Map();
    const used = new Set();
    for (const { place, track, score } of pairs.sort((a, b) => b.score - a.score)) {
      if (score < this.rules.min_iou || matches.has(place) || used.has(track)) continue;
      matches.set(place, track);
      used.add(track);
    }
    return matches;
  }
}
