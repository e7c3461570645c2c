// Current position of each face: a result is one round trip old, so boxes are extrapolated to the displayed frame.

const LOOK_AHEAD_MS = 220;
const SETTLE_MS = 55;
const FADE_MS = 350;
const SIDES = ["x", "y", "width", "height"];

class Moving {
  constructor(face, at) {
    this.box = { ...face.box };
    this.velocity = { x: 0, y: 0, width: 0, height: 0 }; // per millisecond
    this.face = face;
    this.last = { ...face.box };
    this.at = at;
  }

  update(face, at) {
    const passed = at - this.at;
    for (const side of SIDES) {
      const speed = passed > 0 ? (face.box[side] - this.last[side]) / passed : 0;
      this.velocity[side] += 0.5 * (speed - this.velocity[side]);
    }
    Object.assign(this, { face, last: { ...face.box }, at });
  }

  step(now, passed) {
    const ahead = Math.min(Math.max(now - this.at, 0), LOOK_AHEAD_MS);
    const share = 1 - Math.exp(-passed / SETTLE_MS);
    for (const side of SIDES) {
      const aim = this.last[side] + this.velocity[side] * ahead;
      this.box[side] += share * (aim - this.box[side]);
    }
  }
}

export class Motion {
  constructor() {
    this.tracks = new Map();
    this.steppedAt = 0;
  }

  /** Process a result. `at`: when its frame was captured; `now`: when it arrived. */
  update(faces, at, now) {
    for (const face of faces) {
      const known = this.tracks.get(face.track);
      if (known) known.update(face, at);
      else this.tracks.set(face.track, new Moving(face, at));
    }
    const present = new Set(faces.map((face) => face.track));
    for (const [track, moving] of this.tracks) if (!present.has(track)) moving.gone ??= now;
    for (const face of faces) this.tracks.get(face.track).gone = undefined;
  }

  /** Faces with their boxes in the newest frame, as at(). */
  last() {
    return [...this.tracks.values()]
      .filter(({ gone }) => gone === undefined)
      .map(({ face, last }) => ({ face, box: last, opacity: 1 }));
  }

  /** Faces with their boxes at `now` and an opacity, in pixels of the frame. */
  at(now) {
    const passed = Math.min(now - this.steppedAt, 100);
    this.steppedAt = now;
    const shown = [];
    for (const [track, moving] of this.tracks) {
      const opacity = moving.gone === undefined ? 1 : 1 - (now - moving.gone) / FADE_MS;
      if (opacity <= 0) {
        this.tracks.delete(track);
        continue;
      }
      moving.step(now, passed);
      shown.push({ face: moving.face, box: moving.box, opacity });
    }
    return shown;
  }
}
