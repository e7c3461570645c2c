// Pixels of the frames without result, and what the tracker compares the faces in them by.

import { similarity } from "../core/align.js";
import { Cuts } from "../core/cuts.js";
import { descriptorOf } from "../core/descriptor.js";
import { facts } from "../core/labels.js";

export class Looks {
  constructor() {
    this.pictures = new Map(); // time of a frame -> its pixels
    this.crop = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    Object.assign(this.crop.canvas, { width: facts.crop.px, height: facts.crop.px });
    this.small = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    Object.assign(this.small.canvas, { width: 64, height: 36 });
    this.cuts = new Cuts();
  }

  /** Whether another scene of a video begins with a frame. */
  isCut(takenAt) {
    const picture = this.at(takenAt);
    if (!picture) return false;
    this.small.drawImage(picture, 0, 0, 64, 36);
    return this.cuts.isCut(this.small.getImageData(0, 0, 64, 36));
  }

  async keep(canvas, takenAt) {
    this.pictures.set(takenAt, await createImageBitmap(canvas));
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

  clear() {
    this.drop(Infinity);
    this.cuts.clear();
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
