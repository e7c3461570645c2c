// Filter of the gallery: photos with one expression, uncertain, with a reason for doubt, without a face, or with an error.

import { element, swatch } from "./dom.js";
import { LABELS, UNCERTAIN, facts } from "../core/labels.js";
import { NAMES } from "../core/reasons.js";

const ALL = "all";
const NO_FACE = "no face";
const ERROR = "error";

/** Filters that match a photo. */
function kindsOf({ image, error }) {
  if (error) return [ERROR];
  if (!image) return [];
  if (!image.faces.length) return [NO_FACE];
  return image.faces.flatMap((face) => [face.uncertain ? UNCERTAIN : face.label, ...face.reasons]);
}

export class Filter {
  constructor(root, changed) {
    this.root = root;
    this.changed = changed;
    this.kind = ALL;
  }

  chosen(results) {
    return results.filter((result) => this.kind === ALL || kindsOf(result).includes(this.kind));
  }

  /** Show the number of photos of each filter; filters without a match are hidden. */
  update(results) {
    const count = (kind) => results.filter((result) => kindsOf(result).includes(kind)).length;
    const found = [...LABELS, UNCERTAIN, ...facts.reasons, NO_FACE, ERROR].map((kind) => [kind, count(kind)]).filter(([, many]) => many);
    if (!found.some(([kind]) => kind === this.kind)) this.kind = ALL;
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset.kind : null;
    this.root.replaceChildren(...[[ALL, results.length], ...found].map(([kind, many]) => this.button(kind, many)));
    this.root.querySelector(`[data-kind="${focused}"]`)?.focus();
    this.apply(results);
  }

  apply(results) {
    const chosen = new Set(this.chosen(results));
    for (const result of results) result.root.hidden = !chosen.has(result);
    for (const button of this.root.children) button.setAttribute("aria-pressed", String(button.dataset.kind === this.kind));
  }

  button(kind, many) {
    const color = LABELS.includes(kind) ? [swatch(kind)] : [];
    const button = element("button", { class: "filter", "data-kind": kind }, ...color, `${NAMES[kind] ?? kind} ${many}`);
    button.addEventListener("click", () => {
      this.kind = kind;
      this.changed();
    });
    return button;
  }
}
