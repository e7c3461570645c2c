// Faces of a stream: the whole picture is searched every half second, and in between only the surroundings of each face.
// Classification takes most of the time: a few faces at once are classified anew, those first that have changed most or
// waited longest, and all others keep their probabilities.

import { descriptorOf, dot } from "../descriptor.js";

const SEARCH_MS = 500;
const MANY = 4; // faces; for more, their surroundings cost as much as the picture
const AROUND = 2; // side of the surroundings, in sides of the box
const AROUND_PX = 128;
const CLASSIFY_MS = 100; // from one classification of a face to the next, shorter than the smoothing of probabilities
const CLASSIFY_SHARE = 1 / 2; // of the time, on slow machines
const AT_ONCE_MS = 40; // of classification per frame, but one face at least
const SAME_FACE = 0.9; // similarity of descriptors: another face is classified at once
const SAME_LOOK = 0.97; // less, as after a smile: the face counts as one that has waited CHANGED times as long
const CHANGED = 4;

export class Follower {
  constructor(pipeline) {
    this.pipeline = pipeline;
    this.scene = null;
    this.faces = [];
    this.searchedAt = -Infinity;
    this.known = [];
    this.faceMs = 0;
    this.classifyAt = -Infinity;
  }

  /** Label the faces of a frame; frames of one `stream` follow each other. Each face has the `descriptor` that tells who it is. */
  async label(picture, stream) {
    const { width, height } = picture;
    const find = async () => {
      const scene = `${stream} ${width}x${height}`;
      const due = scene !== this.scene || performance.now() - this.searchedAt >= SEARCH_MS;
      const followed = due || !this.faces.length || this.faces.length > MANY ? null : await this.follow(picture);
      this.faces = followed ?? (await this.pipeline.find(picture));
      if (!followed) Object.assign(this, { scene, searchedAt: performance.now() });
      return this.faces;
    };
    const result = await this.pipeline.label(picture, find, (crops, found) => this.assess(crops, found));
    result.faces.forEach((face, index) => (face.descriptor = this.newest[index]));
    return result;
  }

  /** As Pipeline.assess, but of the faces that are due; the others have the results of their last classification. */
  async assess(crops, found) {
    const began = performance.now();
    const looks = (this.newest = crops.map(descriptorOf));
    const known = looks.map((look) => this.closest(look));
    const due = this.due(known, began);
    if (due.length) {
      const results = await this.pipeline.assess(due.map((index) => crops[index]), due.map((index) => found[index]));
      due.forEach((index, place) => (known[index] = { look: looks[index], at: began, result: results[place] }));
      const passed = performance.now() - began;
      this.faceMs = passed / due.length;
      this.classifyAt = began + passed / CLASSIFY_SHARE;
    }
    this.known = known;
    return known.map(({ result }) => result);
  }

  /** The classified face that looks most like one, with its similarity; undefined if none does. */
  closest(look) {
    const alike = look ? this.known.filter((face) => face.look).map((face) => ({ ...face, similarity: dot(look, face.look) })) : [];
    return alike.filter(({ similarity }) => similarity >= SAME_FACE).sort((one, other) => other.similarity - one.similarity)[0];
  }

  /** Indexes of the faces to classify now. */
  due(known, now) {
    const indexes = [...known.keys()];
    const fresh = indexes.filter((index) => !known[index]);
    const urgency = indexes.map((index) => known[index] && (now - known[index].at) * (known[index].similarity < SAME_LOOK ? CHANGED : 1));
    const waiting = indexes.filter((index) => now >= this.classifyAt && urgency[index] >= CLASSIFY_MS).sort((one, other) => urgency[other] - urgency[one]);
    const count = Math.max(1, Math.floor(AT_ONCE_MS / this.faceMs)) - fresh.length;
    return [...fresh, ...waiting.slice(0, Math.max(0, count))];
  }

  /** The faces near their last places; null if one is not there. */
  async follow(picture) {
    const { search } = this.pipeline;
    const found = [];
    for (const face of this.faces) {
      const [best] = await search.near(picture, face, { around: AROUND, px: AROUND_PX });
      if (!best || found.some((other) => search.same(best, other))) return null;
      found.push(best);
    }
    return found;
  }
}
