// Cards of the people in view; a card shrinks to one line when its person has left.

import { element, setText } from "./dom.js";
import { FaceBlock } from "./faces.js";
import { hintOf } from "../core/reasons.js";
import { Timeline } from "./timeline.js";

const AWAY_MS = 1200;
const REMOVED_MS = 10_000; // until then, a person who returns keeps the number
const REFRESH_MS = 100;
const TIMELINE_MS = 400;
const THUMB_MS = 700;
const HINT_MS = 1500;
const COMPACT_FROM = 5; // people in view
const THUMB_PX = 112;

class Person {
  constructor(number) {
    this.block = new FaceBlock(`Person ${number}`, number);
    this.root = this.block.root;
    this.root.dataset.person = number;
    this.thumb = element("canvas", { class: "thumb", width: THUMB_PX, height: THUMB_PX, "aria-hidden": "true" });
    this.root.prepend(this.thumb);
    this.timeline = new Timeline();
    this.root.append(this.timeline.root);
    this.drawnAt = this.thumbAt = this.hintAt = 0;
    this.hint = "";
    this.face = null;
    this.seenAt = -Infinity;
  }

  seen(face, now) {
    Object.assign(this, { face, seenAt: now });
    this.timeline.history.add(face, now);
  }

  /** `answeredAt`: arrival of the newest result; while none arrives, nobody counts as having left. */
  refresh(now, answeredAt, threshold) {
    this.away = answeredAt - this.seenAt > AWAY_MS;
    this.root.classList.toggle("away", this.away);
    if (this.away) {
      this.block.label.classList.remove("uncertain");
      return setText(this.block.label, "left");
    }
    if (now - this.hintAt > HINT_MS) Object.assign(this, { hint: hintOf(this.face, { advice: true }), hintAt: now }); // no flicker
    this.block.show(this.face, this.hint);
    if (now - this.drawnAt < TIMELINE_MS) return;
    this.drawnAt = now;
    this.timeline.draw(now, threshold);
  }

  /** Copy the face from the frame that was labeled. */
  look(picture, { box }, now) {
    if (now - this.thumbAt < THUMB_MS) return;
    this.thumbAt = now;
    const side = Math.max(box.width, box.height) * 1.25;
    const [x, y] = [box.x + (box.width - side) / 2, box.y + (box.height - side) / 2];
    const [context, scale] = [this.thumb.getContext("2d"), THUMB_PX / side];
    context.clearRect(0, 0, THUMB_PX, THUMB_PX);
    context.drawImage(picture, -x * scale, -y * scale, picture.width * scale, picture.height * scale); // WebKit draws no part that leaves the picture
  }
}

/** Whether a card comes after another one: people in view are first, by number. */
const follows = (card, other) => card.classList.contains("away") || Number(card.dataset.person) > Number(other.dataset.person);

export class People {
  constructor(list, nobody) {
    this.list = list;
    this.nobody = nobody;
    this.people = new Map(); // track -> Person
    this.refreshedAt = 0;
    this.clear();
  }

  clear() {
    this.people.clear();
    this.pause(false);
    this.list.replaceChildren();
    this.nobody.hidden = false;
  }

  /** Show the faces of a result. `picture`: its frame, if known. */
  update(faces, now, picture) {
    this.answeredAt = now;
    for (const face of faces) {
      const { track } = face;
      if (!this.people.has(track)) this.people.set(track, new Person(track));
      const person = this.people.get(track);
      person.seen(face, now);
      if (picture) person.look(picture, face, now);
    }
    this.forget(now);
  }

  /** While nothing arrives, cards keep the last result and say so. */
  pause(paused) {
    this.list.classList.toggle("stale", paused);
  }

  /** Remove people some seconds after they left. */
  forget(now) {
    for (const [track, person] of this.people) {
      if (now - person.seenAt < REMOVED_MS) continue;
      person.root.remove();
      this.people.delete(track);
    }
  }

  refresh(now, threshold) {
    if (now - this.refreshedAt < REFRESH_MS) return;
    this.refreshedAt = now;
    for (const person of this.people.values()) {
      const wasAway = person.away;
      person.refresh(now, this.answeredAt, threshold);
      if (person.root.isConnected && wasAway === person.away) continue;
      if (person.away) this.list.append(person.root);
      else this.list.insertBefore(person.root, [...this.list.children].find((card) => follows(card, person.root)) ?? null);
    }
    const inView = [...this.people.values()].filter(({ away }) => !away).length;
    this.list.classList.toggle("compact", inView >= COMPACT_FROM || Boolean(document.fullscreenElement));
    this.nobody.hidden = this.people.size > 0;
  }
}
