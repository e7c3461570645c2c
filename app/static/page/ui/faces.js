// Block with the label and the bars of one face: of a person in the live view, or of a photo.

import { element, setText } from "./dom.js";
import { LABELS, agreementOf, brief, percent, ranked } from "../core/labels.js";
import { hintOf } from "../core/reasons.js";

const SHORT = 3;
const LEAST = 0.01; // less is not shown unless all are

/** A block with number, label and bars: the three most probable expressions, or all. `show(face)` fills it. */
export class FaceBlock {
  constructor(name, number, { expanded = false } = {}) {
    this.label = element("span", { class: "face-label" });
    this.rows = new Map(LABELS.map((label) => [label, bar(label)]));
    this.bars = element("ul", { class: "bars", "aria-label": `${name}: expressions` }, ...[...this.rows.values()].map((row) => row.item));
    this.chip = element("span", { class: "chip", "aria-hidden": "true" }, String(number));
    this.more = element("button", { class: "more", "aria-expanded": "false" });
    this.more.addEventListener("click", () => this.expand(!this.expanded));
    this.name = name;
    this.hint = element("p", { class: "hint" });
    this.agreement = element("p", { class: "agreement" }); // seen with all expressions
    this.head = element("div", { class: "face-head" }, element("h3", {}, this.chip, element("span", { class: "name" }, name)), this.label, this.more, this.hint);
    this.root = element("li", { class: "face" }, this.head, this.bars, this.agreement);
    this.expand(expanded);
  }

  expand(expanded) {
    this.expanded = expanded;
    this.more.setAttribute("aria-expanded", String(expanded));
    this.more.setAttribute("aria-label", `${this.name}: ${expanded ? "three expressions" : "all expressions"}`);
    this.more.title = expanded ? "Show three" : "Show all";
    this.root.classList.toggle("expanded", expanded);
    if (this.face) this.show(this.face);
  }

  /** Show a face; `hint` is a line about why its label may be wrong. */
  show(face, hint = hintOf(face, { advice: false })) {
    this.face = face;
    setText(this.hint, hint);
    this.hint.hidden = !hint;
    setText(this.label, brief(face));
    setText(this.agreement, agreementOf(face));
    this.label.title = face.uncertain ? "Uncertain: below the threshold" : "";
    this.label.classList.toggle("uncertain", face.uncertain);
    this.root.dataset.label = this.label.dataset.label = face.label;
    ranked(face.probabilities).forEach((label, rank) => {
      const row = this.rows.get(label);
      const value = face.probabilities[label];
      row.fill.style.width = `${(100 * value).toFixed(1)}%`;
      row.item.hidden = !this.expanded && rank >= SHORT;
      row.item.classList.toggle("none", value < LEAST);
      row.item.style.order = this.expanded ? 0 : rank;
      row.item.classList.toggle("lead", label === face.label);
      setText(row.value, percent(value));
    });
  }
}

function bar(label) {
  const fill = element("div", { class: "fill", "data-label": label });
  const value = element("span", { class: "value" });
  const track = element("div", { class: "track", "aria-hidden": "true" }, fill);
  return { fill, value, item: element("li", {}, element("span", {}, label), track, value) };
}
