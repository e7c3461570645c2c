// "Show me": a round of half a minute. The page asks for one expression after the other, and shows how probable the
// model finds each in the faces of one person, or of two against each other.

import { announce, byId, element, setText } from "./dom.js";
import { LABELS, percent } from "./labels.js";

const EACH_MS = 5000;
const PLAYERS = 2;

/** A round that a button starts and ends; an observer of the live view. */
export class Round {
  constructor(live) {
    this.live = live;
    this.asked = [];
    live.observers.push(this);
    byId("round").addEventListener("click", () => (this.asked.length ? this.stop() : this.start()));
    byId("round-close").addEventListener("click", () => this.stop());
  }

  start() {
    const wanted = LABELS.filter((label) => label !== "neutral").slice(0, 6);
    this.asked = wanted
      .map((label) => [Math.random(), label])
      .sort(([one], [other]) => one - other)
      .map(([, label]) => label);
    this.best = new Map(); // number of a person -> label -> the highest probability
    this.began = performance.now();
    this.turn = -1;
    byId("round").setAttribute("aria-pressed", "true");
    byId("round-card").hidden = false;
    this.drawn(this.began);
  }

  people(faces) {
    const label = this.asked[this.turn];
    if (!label) return;
    for (const { track, probabilities } of faces.slice(0, PLAYERS)) {
      if (!this.best.has(track) && this.best.size === PLAYERS) continue;
      const best = this.best.get(track) ?? {};
      this.best.set(track, { ...best, [label]: Math.max(best[label] ?? 0, probabilities[label]) });
    }
  }

  drawn(now) {
    if (!this.asked.length) return;
    const passed = now - this.began;
    const turn = Math.floor(passed / EACH_MS);
    if (turn >= this.asked.length) return this.finish();
    if (turn !== this.turn) {
      this.turn = turn;
      announce(`Show me ${this.asked[turn]}`);
    }
    setText(byId("round-title"), `Show me ${this.asked[turn]}`);
    const left = Math.ceil((EACH_MS * (turn + 1) - passed) / 1000);
    const scores = [...this.best].map(([track, best]) => this.line(track, percent(best[this.asked[turn]] ?? 0)));
    byId("round-lines").replaceChildren(element("li", {}, `${turn + 1} of ${this.asked.length}, ${left} s`), ...scores);
  }

  line(track, text) {
    return element("li", {}, this.best.size > 1 ? `Person ${track}: ${text}` : text);
  }

  /** Show the result, until it is closed. */
  finish() {
    const { asked } = this;
    this.turn = asked.length;
    const totals = [...this.best].map(([track, best]) => [
      track,
      asked.reduce((sum, label) => sum + (best[label] ?? 0), 0) / asked.length,
    ]);
    const lines = asked.map((label) =>
      element(
        "li",
        {},
        `${label}: ${[...this.best.values()].map((best) => percent(best[label] ?? 0)).join(" and ") || "no face"}`,
      ),
    );
    setText(byId("round-title"), totals.length ? "How close you came" : "No face was in view");
    byId("round-lines").replaceChildren(
      ...lines,
      ...totals.map(([track, total]) => this.line(track, `${percent(total)} on average`)),
      element("li", { class: "quiet" }, "It shows what the model sees, not how well you act."),
    );
    announce(byId("round-title").textContent);
    this.asked = [];
    byId("round").setAttribute("aria-pressed", "false");
  }

  stop() {
    this.asked = [];
    byId("round").setAttribute("aria-pressed", "false");
    byId("round-card").hidden = true;
  }
}
