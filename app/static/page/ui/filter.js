// Filter of the gallery: photos with one expression, uncertain, with a reason for doubt, without a face, or with an error.

import { element, setText, swatch } from "./dom.js";
import { LABELS, UNCERTAIN, facts } from "../core/labels.js";
import { NAMES } from "../core/reasons.js";

const ALL = "all";
const NO_FACE = "no face";
const ERROR = "error";

/** Filters that match a photo. */
function kindsOf({ image, error }) {
  if (error) return [ALL, ERROR];
  if (!image) return [ALL];
  if (!image.faces.length) return [ALL, NO_FACE];
  return [ALL, ...image.faces.flatMap((face) => [face.uncertain ? UNCERTAIN : face.label, ...face.reasons])];
}

export class Filter {
  constructor(root, changed) {
    this.kind = ALL;
    this.buttons = [ALL, ...LABELS, UNCERTAIN, ...facts.reasons, NO_FACE, ERROR].map((kind) => {
      const button = element("button", { class: "filter", "data-kind": kind }, ...(LABELS.includes(kind) ? [swatch(kind)] : []), element("span"));
      button.addEventListener("click", () => {
        this.kind = kind;
        changed();
      });
      return button;
    });
    root.append(...this.buttons);
  }

  chosen(results) {
    return results.filter((result) => kindsOf(result).includes(this.kind));
  }

  /** Show the number of photos of each filter; filters without a match are hidden. */
  update(results) {
    for (const button of this.buttons) {
      const { kind } = button.dataset;
      const many = results.filter((result) => kindsOf(result).includes(kind)).length;
      button.hidden = !many;
      setText(button.lastChild, `${NAMES[kind] ?? kind} ${many}`);
      if (!many && kind === this.kind) this.kind = ALL;
    }
    this.apply(results);
  }

  apply(results) {
    const chosen = new Set(this.chosen(results));
    for (const result of results) result.root.hidden = !chosen.has(result);
    for (const button of this.buttons) button.setAttribute("aria-pressed", String(button.dataset.kind === this.kind));
  }
}
