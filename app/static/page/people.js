// Cards of the people in view; a card shrinks to one line when its person has left.

import { showAttention } from "./attention.js";
import { element, setText } from "./dom.js";
import { FaceBlock } from "./faces.js";
import { Timeline } from "./timeline.js";

const AWAY_MS = 1200;
const REMOVED_MS = 10_000; // until then, a person who returns keeps the number
const REFRESH_MS = 100;
const TIMELINE_MS = 400;
const THUMB_MS = 700;
const THUMB_PX = 112;
const MAX_AWAY = 3;

class Person {
  constructor(number) {
    this.block = new FaceBlock(`Person ${number}`, number);
    this.root = this.block.root;
    this.root.dataset.person = number;
    this.thumb = element("canvas", { class: "thumb", width: THUMB_PX, height: THUMB_PX, "aria-hidden": "true" });
    this.timeline = new Timeline();
    this.root.prepend(this.thumb);
    this.root.append(this.timeline.root);
    this.drawnAt = this.thumbAt = 0;
  }

  seen(face, now) {
    Object.assign(this, { face, seenAt: now });
    this.timeline.history.add(face, now);
  }

  /** `answeredAt`: arrival of the newest result; while none arrives, nobody counts as having left. */
  refresh(now, answeredAt, threshold) {
    const away = answeredAt - this.seenAt > AWAY_MS;
    this.root.classList.toggle("away", away);
    if (away) return setText(this.block.label, "left");
    this.block.show(this.face);
    if (now - this.drawnAt < TIMELINE_MS) return;
    this.drawnAt = now;
    this.timeline.draw(now, threshold);
  }

  /** Copy the face from the video. */
  look(video, box, scale, now) {
    if (now - this.thumbAt < THUMB_MS) return;
    this.thumbAt = now;
    const side = Math.max(box.width, box.height) * 1.25;
    const [x, y] = [box.x + (box.width - side) / 2, box.y + (box.height - side) / 2];
    this.thumb.getContext("2d").drawImage(video, x * scale, y * scale, side * scale, side * scale, 0, 0, THUMB_PX, THUMB_PX);
  }
}

export class People {
  constructor(list, nobody, legend) {
    Object.assign(this, { list, nobody, legend });
    this.people = new Map(); // track -> Person
    this.refreshedAt = 0;
    this.clear();
  }

  clear() {
    this.people.clear();
    this.list.replaceChildren();
    this.nobody.hidden = false;
    this.legend.hidden = true;
  }

  update(faces, now) {
    this.answeredAt = now;
    for (const face of faces) {
      if (!this.people.has(face.track)) this.people.set(face.track, new Person(face.track));
      this.people.get(face.track).seen(face, now);
    }
    this.forget(now);
  }

  /** Remove people some seconds after they left, or sooner if several others left later. */
  forget(now) {
    const away = [...this.people].filter(([, { seenAt }]) => now - seenAt > AWAY_MS)
      .sort(([, one], [, other]) => other.seenAt - one.seenAt);
    away.forEach(([track, person], place) => {
      if (place < MAX_AWAY && now - person.seenAt < REMOVED_MS) return;
      person.root.remove();
      this.people.delete(track);
    });
  }

  /** Put a figure on the card of a person. */
  attach(track, figure) {
    const person = this.people.get(track);
    if (person) showAttention(person.root, figure);
  }

  look(video, shown, scale, now) {
    for (const { face, box } of shown) this.people.get(face.track)?.look(video, box, scale, now);
  }

  refresh(now, threshold) {
    if (now - this.refreshedAt < REFRESH_MS) return;
    this.refreshedAt = now;
    for (const person of this.people.values()) {
      const wasAway = person.root.classList.contains("away");
      person.refresh(now, this.answeredAt, threshold);
      const isAway = person.root.classList.contains("away");
      if (person.root.isConnected && wasAway === isAway) continue;
      if (isAway) this.list.append(person.root);
      else this.list.insertBefore(person.root, this.list.querySelector(".away")); // people in view come first
    }
    this.nobody.hidden = this.people.size > 0;
    this.legend.hidden = !this.people.size;
  }
}
