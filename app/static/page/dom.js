// Small helpers for the document. Text is always set as text, never as markup.

export const byId = (id) => document.getElementById(id);

/** Make an element: `element("p", {class: "quiet", hidden: true}, "text", child)`. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Set text only where it differs, so that nothing is laid out again for nothing. */
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

/** Say something to those who hear the page. Saying the same twice in a row is left out. */
export function announce(text) {
  setText(byId("announce"), text);
}

/** Offer a blob to the person as a file. */
export function download(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
