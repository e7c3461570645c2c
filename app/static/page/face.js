// Block with the label and the bars of one face: of a person in the live view, or of a photo.

import { element, setText } from "./dom.js";
import { LABELS, agreementOf, hintOf, marked, percent } from "./labels.js";

/**
 * A block with label, percentage and one bar; open, with all expressions and the reason for doubt. `show(face)` fills
 * it.
 */
export class FaceBlock {
  constructor(name, number, { open = false } = {}) {
    this.label = element("span");
    this.value = element("span", { class: "share" });
    this.fill = element("span", { class: "fill" });
    this.title = element("span", { class: "face-label" }, this.label, " ", this.value);
    const chip = element("span", { class: "chip", "aria-hidden": "true" }, String(number));
    this.head = element(
      "button",
      { class: "face-head" },
      this.title,
      element("span", { class: "name" }, chip, element("span", {}, name)),
      element("span", { class: "track", "aria-hidden": "true" }, this.fill),
    );
    this.head.addEventListener("click", () => this.open(this.body.hidden));
    this.hint = element("p", { class: "hint" });
    this.rows = new Map(LABELS.map((label) => [label, row(label)]));
    this.bars = element(
      "ul",
      { class: "bars", "aria-label": `${name}: all expressions` },
      ...[...this.rows.values()].map(({ item }) => item),
    );
    this.agreement = element("p", { class: "agreement" });
    this.body = element("div", { class: "face-body" }, this.hint, this.bars, this.agreement);
    this.root = element("li", { class: "face" }, element("h3", {}, this.head), this.body);
    this.open(open);
  }

  open(open) {
    this.body.hidden = !open;
    this.head.setAttribute("aria-expanded", String(open));
    if (this.face) this.show(this.face);
  }

  /** Show a face; `hint` is a line about why its label may be wrong. */
  show(face, hint = hintOf(face, { advice: false })) {
    this.face = face;
    this.root.dataset.label = face.label;
    setText(this.label, marked(face));
    setText(this.value, percent(face.confidence));
    this.title.classList.toggle("uncertain", face.uncertain);
    this.title.title = face.uncertain ? "Uncertain: below the threshold" : "";
    fillTo(this.fill, face, face.label);
    if (this.body.hidden) return;
    setText(this.hint, hint);
    this.hint.hidden = !hint;
    setText(this.agreement, agreementOf(face));
    for (const [label, { item, fill, value }] of this.rows) {
      item.classList.toggle("lead", label === face.label); // it is first
      fillTo(fill, face, label);
      setText(value, percent(face.probabilities[label]));
    }
  }
}

function fillTo(fill, face, label) {
  fill.dataset.label = label;
  fill.classList.toggle("uncertain", face.uncertain && label === face.label);
  fill.style.width = `${(100 * face.probabilities[label]).toFixed(1)}%`;
}

function row(label) {
  const [fill, value] = [element("span", { class: "fill" }), element("span", { class: "value" })];
  return {
    fill,
    value,
    item: element(
      "li",
      {},
      element("span", {}, label),
      element("span", { class: "track", "aria-hidden": "true" }, fill),
      value,
    ),
  };
}
