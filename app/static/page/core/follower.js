// Faces of a stream: the whole picture is searched every half second, and in between only the surroundings of each face.
// Classification takes most of the time: between two, faces that look the same keep their probabilities.

import { descriptorOf, dot } from "./descriptor.js";

const SEARCH_MS = 500;
const MANY = 4; // faces; for more, their surroundings cost as much as the picture
const AROUND = 2; // side of the surroundings, in sides of the box
const AROUND_PX = 128;
const CLASSIFY_MS = 100; // from one classification to the next, shorter than the smoothing of probabilities
const CLASSIFY_SHARE = 1 / 3; // of the time, on slow machines
const SAME_LOOK = 0.9; // similarity of descriptors

export class Follower {
  constructor(pipeline) {
    Object.assign(this, { pipeline, faces: [], searchedAt: -Infinity, looks: [], assessed: [], classifyAt: -Infinity });
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

  /** As Pipeline.assess; between classifications, the results of the last one if all faces look as they did then. */
  async assess(crops, found) {
    const began = performance.now();
    const looks = (this.newest = crops.map(descriptorOf));
    const isSame = (look, index) => look && this.looks[index] && dot(look, this.looks[index]) >= SAME_LOOK;
    if (began < this.classifyAt && looks.length === this.looks.length && looks.every(isSame)) return this.assessed;
    this.assessed = await this.pipeline.assess(crops, found);
    this.looks = looks;
    this.classifyAt = began + Math.max(CLASSIFY_MS, (performance.now() - began) / CLASSIFY_SHARE);
    return this.assessed;
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
