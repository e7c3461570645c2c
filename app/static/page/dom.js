// Small helpers for the document. Text is always set as text, never as markup.

import { LABELS, colorOf } from "./labels.js";

/**
 * The element with an id, of whichever kind.
 * @param {string} id
 * @returns {any}
 */
export const byId = (id) => document.getElementById(id);

/** Create an element: `element("p", {class: "quiet", hidden: true}, "text", child)`. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Set text only if it differs, to avoid needless layout. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** Announce text to screen readers; a repetition is skipped. */
export function announce(text) {
  setText(byId("announce"), text);
}

/** A time in seconds as minutes and seconds: 75 is 1:15. */
export const clock = (seconds) => `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;

/** Download a blob as a file. */
export function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Give elements with `data-label` the color of their expression, as `--shade`. */
export function applyPalette() {
  const sheet = new CSSStyleSheet();
  for (const label of LABELS) sheet.insertRule(`[data-label="${label}"] { --shade: ${colorOf(label)}; }`);
  document.adoptedStyleSheets = [sheet];
}

/** Set the size of a canvas, which clears it, only if it differs. */
export function resize(canvas, width, height) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
}
