// One face in words and bars; the same block for a person in the live view and for a face of a photo.

import { showAttention } from "./attention.js";
import { element, setText } from "./dom.js";
import { UNCERTAIN, LABELS, likeliest, percent, spoken } from "./labels.js";
import { Timeline } from "./timeline.js";

const AWAY_MS = 1200;
const FORGOTTEN_MS = 60_000;
const REFRESH_MS = 100;
const TIMELINE_MS = 500;
const MAX_SHOWN = 8;

/** A block with heading, label and seven bars; `show(face)` fills it. */
export class FaceBlock {
  constructor(heading, level = "h3", tag = "li") {
    this.label = element("span", { class: "face-label" });
    this.rows = new Map(LABELS.map((label) => [label, bar(label)]));
    const bars = element("ul", { class: "bars", "aria-label": `${heading}: all expressions` });
    bars.append(...[...this.rows.values()].map((row) => row.item));
    const head = element("div", { class: "face-head" }, element(level, {}, heading), this.label);
    this.root = element(tag, { class: "face" }, head, bars);
  }

  show(face) {
    const lead = likeliest(face);
    setText(this.label, spoken(face));
    for (const [label, row] of this.rows) {
      const value = face.probabilities[label];
      row.fill.style.width = `${(100 * value).toFixed(1)}%`;
      row.item.classList.toggle("lead", label === lead);
      setText(row.value, percent(value));
    }
  }
}

function bar(label) {
  const fill = element("div", { class: "fill", "data-label": label });
  const value = element("span", { class: "value" });
  const track = element("div", { class: "track", "aria-hidden": "true" }, fill);
  return { fill, value, item: element("li", {}, element("span", {}, label), track, value) };
}

class Person {
  constructor(track) {
    this.block = new FaceBlock(`Person ${track}`);
    const canvas = element("canvas", { class: "timeline", role: "img" });
    const axis = element("div", { class: "axis", "aria-hidden": "true" }, element("span", {}, "60 s ago"), element("span", {}, "now"));
    this.timeline = new Timeline(canvas);
    this.block.root.append(canvas, axis);
    this.drawnAt = 0;
  }

  seen(face, at) {
    Object.assign(this, { face, seenAt: at });
    this.timeline.add(face.uncertain ? UNCERTAIN : face.label, face.probabilities[likeliest(face)], at);
  }

  /** `answeredAt`: when the newest answer came; as long as none comes, nobody has left. */
  refresh(now, answeredAt) {
    const away = answeredAt - this.seenAt > AWAY_MS;
    this.block.root.classList.toggle("away", away);
    this.block.show(this.face);
    if (away) setText(this.block.label, "out of view");
    if (now - this.drawnAt < TIMELINE_MS) return;
    this.drawnAt = now;
    this.timeline.draw(now);
    this.timeline.canvas.setAttribute("aria-label", this.timeline.describe(now));
  }
}

/** The list of people beside the live picture. */
export class People {
  constructor(list, nobody) {
    Object.assign(this, { list, nobody });
    this.people = new Map();
    this.refreshedAt = 0;
  }

  update(faces, now) {
    this.answeredAt = now;
    for (const face of faces) {
      if (!this.people.has(face.track)) this.people.set(face.track, new Person(face.track));
      this.people.get(face.track).seen(face, now);
    }
    this.forget(now);
  }

  /** Put a figure beside a person. */
  attach(track, figure) {
    const person = this.people.get(track);
    if (person) showAttention(person.block.root, figure);
  }

  /** A person out of view for a minute has an empty timeline; beyond eight, those away the longest leave first. */
  forget(now) {
    const byAge = [...this.people].sort(([, one], [, other]) => other.seenAt - one.seenAt);
    byAge.forEach(([track, person], place) => {
      const away = now - person.seenAt > AWAY_MS;
      if (now - person.seenAt > FORGOTTEN_MS || (away && place >= MAX_SHOWN)) {
        person.block.root.remove();
        this.people.delete(track);
      }
    });
  }

  refresh(now) {
    if (now - this.refreshedAt < REFRESH_MS) return;
    this.refreshedAt = now;
    for (const [, person] of this.people) {
      const { root } = person.block;
      const wasAway = root.classList.contains("away");
      if (!root.isConnected) this.list.insertBefore(root, this.list.querySelector(".away")); // who is in view comes first
      person.refresh(now, this.answeredAt);
      if (!wasAway && root.classList.contains("away")) this.list.append(root);
    }
    this.nobody.hidden = this.people.size > 0;
  }

  clear() {
    this.people.clear();
    this.list.replaceChildren();
    this.nobody.hidden = false;
  }
}
