// The people of one source: who they are (tracker.js), where they are now (motion.js), and for how long there is nobody.

import { Motion } from "./motion.js";
import { Tracker } from "./tracker.js";

const NOBODY_MS = 1500;

export class Scene {
  constructor() {
    this.tracker = new Tracker();
    this.motion = new Motion();
    this.size = { width: 4, height: 3 }; // of the newest frame
    this.emptySince = null;
  }

  /** Forget all people: the next source starts with person 1. */
  clear() {
    this.tracker.clear();
    this.motion.clear();
    this.emptySince = null;
  }

  /** People of a result whose frame was taken at `at` and which arrived at `now`, in ms; `cut`: whether another scene of a video begins. */
  update({ faces, width, height }, at, now, cut = false) {
    this.size = { width, height };
    const people = this.tracker.update(faces, at, cut);
    this.motion.update(people, at, now);
    this.emptySince = people.length ? null : (this.emptySince ?? now);
    return people;
  }

  /** Whether nobody has been in view for a moment. */
  isEmpty(now) {
    return this.emptySince !== null && now - this.emptySince > NOBODY_MS;
  }
}
