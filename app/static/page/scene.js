// What one source shows: people, who are tracked from result to result, and their boxes at any moment, which fade when
// they are old.

import { Cuts } from "./cuts.js";
import { describe, smallOf } from "./looks.js";
import { Motion } from "./motion.js";
import { Tracker } from "./tracker.js";

// Results of a frame older than the first, or than some round trips, fade; some time later they are gone.
const OLD_MS = 700;
const OLD_TRIPS = 3;
const FADING_MS = 800;
const SLOW_TRIP_MS = 400; // from here on, the picture shown is the frame that was labeled

export class Scene {
  tripMs = 0; frame = null; size = { width: 4, height: 3 }; people = [];

  /** `isCamera`: the frames have no cuts; `at`: when frames began to be taken. */
  constructor(isCamera, at) {
    this.at = at;
    this.tracker = new Tracker();
    this.motion = new Motion();
    this.cuts = isCamera ? null : new Cuts();
  }

  /** Take over the result of a frame that was taken at `at`. */
  add({ faces, width, height }, frame, at, threshold) {
    const now = performance.now();
    this.tripMs += (this.tripMs ? 0.2 : 1) * (now - at - this.tripMs);
    this.tracker.threshold = threshold;
    this.people = this.tracker.update(describe(faces, frame), at, this.cuts?.isCut(smallOf(frame)));
    this.motion.update(this.people, at, now);
    this.close();
    Object.assign(this, { frame, at, size: { width, height } });
  }

  /** From 1 for new results to 0 for those that are too old to be shown. */
  freshness(now) {
    const oldMs = Math.max(OLD_MS, OLD_TRIPS * this.tripMs);
    return Math.min(1, Math.max(0, 1 - (now - this.at - oldMs) / FADING_MS));
  }

  /** The frame to show instead of the video, if labels come late, or null. */
  slowFrame(now) {
    return this.tripMs > SLOW_TRIP_MS && this.freshness(now) ? this.frame : null;
  }

  /** The faces to draw: {face, box, opacity}. */
  shown(now) {
    const freshness = this.freshness(now);
    const faces = this.slowFrame(now) ? this.motion.last() : this.motion.at(now);
    return freshness ? faces.map((shown) => ({ ...shown, opacity: freshness * shown.opacity })) : [];
  }

  close() {
    this.frame?.close();
  }
}
