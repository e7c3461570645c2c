// Faces of a stream: the whole picture is searched every half second, and in between only the surroundings of each face.

const SEARCH_MS = 500;
const MANY = 4; // faces; for more, their surroundings cost as much as the picture
const AROUND = 2; // side of the surroundings, in sides of the box
const AROUND_PX = 128;

export class Follower {
  constructor(pipeline) {
    Object.assign(this, { pipeline, faces: [], searchedAt: -Infinity });
  }

  /** Label the faces of a frame; frames of one `stream` follow each other. */
  label(picture, stream) {
    const { width, height } = picture;
    return this.pipeline.label(picture, async () => {
      const scene = `${stream} ${width}x${height}`;
      const due = scene !== this.scene || performance.now() - this.searchedAt >= SEARCH_MS;
      const followed = due || !this.faces.length || this.faces.length > MANY ? null : await this.follow(picture);
      if (!followed) {
        this.faces = await this.pipeline.find(picture);
        Object.assign(this, { scene, searchedAt: performance.now() });
      } else {
        this.faces = followed;
      }
      return this.faces;
    });
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
