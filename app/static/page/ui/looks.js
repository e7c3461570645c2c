// Pixels of the frames without result, and what the tracker compares the faces in them by.

import { similarity } from "../core/align.js";
import { descriptorOf } from "../core/descriptor.js";
import { facts } from "../core/labels.js";

export class Looks {
  constructor() {
    this.pictures = new Map(); // time of a frame -> its pixels
    this.crop = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    Object.assign(this.crop.canvas, { width: facts.crop.px, height: facts.crop.px });
  }

  keep(picture, takenAt) {
    this.pictures.set(takenAt, picture);
  }

  /** The pixels of a frame, or undefined. */
  at(takenAt) {
    return this.pictures.get(takenAt);
  }

  /** Drop the pixels of frames up to one. */
  drop(takenAt) {
    for (const [at, old] of this.pictures) {
      if (at > takenAt) continue;
      old.close();
      this.pictures.delete(at);
    }
  }

  /** The faces of a frame with their descriptors; local mode has computed them. */
  describe(faces, takenAt) {
    const picture = this.at(takenAt);
    return faces.map((face) => ({ ...face, descriptor: face.descriptor ?? (picture && this.descriptor(picture, Object.values(face.landmarks))) }));
  }

  descriptor(picture, landmarks) {
    const found = similarity(landmarks.map(({ x, y }) => [x, y]), facts.crop);
    if (!found) return undefined;
    const [[a, , x], [b, , y]] = found;
    this.crop.reset();
    this.crop.setTransform(a, b, -b, a, x, y);
    this.crop.drawImage(picture, 0, 0);
    return descriptorOf(this.crop.getImageData(0, 0, facts.crop.px, facts.crop.px));
  }
}
