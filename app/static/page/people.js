// Cards of the people in view; a card shrinks to one line when its person has left.

import { element, setText } from "./dom.js";
import { FaceBlock } from "./face.js";
import { hintOf } from "./labels.js";
import { Timeline } from "./timeline.js";

const AWAY_MS = 1200;
const REMOVED_MS = 10_000; // until then, a person who returns keeps the number
const REFRESH_MS = 100;
const TIMELINE_MS = 400;
const THUMB_MS = 700;
const HINT_MS = 1500;
const THUMB_PX = 112;

class Person {
  face; seenAt;

  constructor(number) {
    this.block = new FaceBlock(`Person ${number}`, number);
    this.root = this.block.root;
    this.root.dataset.person = number;
    this.thumb = element("canvas", { class: "thumb", width: THUMB_PX, height: THUMB_PX, "aria-hidden": "true" });
    this.block.head.prepend(this.thumb);
    this.timeline = new Timeline();
    this.block.body.append(this.timeline.root);
    this.drawnAt = this.thumbAt = this.hintAt = 0;
    this.hint = "";
  }

  seen(face, now, picture) {
    Object.assign(this, { face, seenAt: now });
    this.timeline.history.add(face, now);
    if (now - this.thumbAt < THUMB_MS) return;
    this.thumbAt = now;
    drawThumb(this.thumb, picture, face);
  }

  /** `answeredAt`: arrival of the newest result; while none arrives, nobody counts as having left. */
  refresh(now, answeredAt, threshold) {
    this.away = answeredAt - this.seenAt > AWAY_MS;
    this.root.classList.toggle("away", this.away);
    this.block.head.disabled = this.away;
    if (this.away) {
      this.block.title.classList.remove("uncertain");
      setText(this.block.value, "");
      return setText(this.block.label, "left");
    }
    // No flicker.
    if (now - this.hintAt > HINT_MS) Object.assign(this, { hint: hintOf(this.face, { advice: true }), hintAt: now });
    this.block.show(this.face, this.hint);
    if (this.block.body.hidden || now - this.drawnAt < TIMELINE_MS) return;
    this.drawnAt = now;
    this.timeline.draw(now, threshold);
  }
}

/** Draw a face and its surroundings over a square canvas, from the picture in which it was found. */
export function drawThumb(canvas, picture, { box }) {
  const side = Math.max(box.width, box.height) * 1.25;
  const [x, y] = [box.x + (box.width - side) / 2, box.y + (box.height - side) / 2];
  const [context, scale] = [canvas.getContext("2d"), canvas.width / side];
  context.clearRect(0, 0, canvas.width, canvas.height);
  // WebKit draws no part that leaves the picture.
  context.drawImage(picture, -x * scale, -y * scale, picture.width * scale, picture.height * scale);
}

export class People {
  constructor(list, nobody) {
    this.list = list;
    this.nobody = nobody;
    this.people = new Map(); // track -> Person
    this.refreshedAt = 0;
    list.replaceChildren();
    list.classList.remove("stale", "outdated");
    nobody.hidden = false;
  }

  /** Show the faces of a result. `picture`: its frame. */
  update(faces, now, picture) {
    this.answeredAt = now;
    for (const face of faces) {
      if (!this.people.has(face.track)) this.people.set(face.track, new Person(face.track));
      this.people.get(face.track).seen(face, now, picture);
    }
    for (const [track, person] of this.people) {
      if (now - person.seenAt < REMOVED_MS) continue;
      person.root.remove();
      this.people.delete(track);
    }
  }

  /** Show the newest state in the order of the numbers; results of `freshness` below 1 are gray, of 0 hidden. */
  refresh(now, threshold, freshness) {
    this.list.classList.toggle("stale", freshness < 1);
    this.list.classList.toggle("outdated", !freshness);
    if (now - this.refreshedAt < REFRESH_MS) return;
    this.refreshedAt = now;
    for (const [track, person] of this.people) {
      person.refresh(now, this.answeredAt, threshold);
      if (!person.root.isConnected)
        this.list.insertBefore(
          person.root,
          [...this.list.children].find((card) => Number(card.dataset.person) > track) ?? null,
        );
    }
    this.nobody.hidden = this.people.size > 0;
  }
}
