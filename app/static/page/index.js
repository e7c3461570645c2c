// Entry of the npm package, for other pages: label(image) and <mien-camera>. They label in the tab, as local mode does.
// `make page` adds the runtime, the models and facts.json to this folder; a page loads it from its own origin.

import { useFacts } from "./core/labels.js";
import { LocalLabeler } from "./local/labeler.js";
import { defineCamera } from "./ui/camera-element.js";

let opened;

/** The labeler that label() and <mien-camera> share. Models are loaded on first use; `loaded(bytes, total)` shows it. */
export function labeler({ base = new URL("./", import.meta.url).href, loaded } = {}) {
  opened ??= open(base, loaded).catch((error) => {
    opened = undefined; // the next call tries again
    throw error;
  });
  return opened;
}

async function open(base, loaded) {
  const response = await fetch(new URL("facts.json", base));
  const facts = response.ok ? await response.json() : {};
  if (!facts.local) throw new Error(`${response.url} has no models: run \`make page\`, or \`make runtime\` before \`make serve\``);
  useFacts(facts);
  return new LocalLabeler(facts, { base, loaded });
}

/** Label the faces of an image: a Blob, a URL, or an element that shows a picture. */
export async function label(image) {
  const local = await labeler();
  const isAddress = typeof image === "string" || image instanceof URL;
  const source = isAddress ? await (await fetch(image)).blob() : image;
  const bitmap = await createImageBitmap(source, ...(source instanceof Blob ? [{ imageOrientation: "from-image", colorSpaceConversion: "none" }] : []));
  const { images: [result] } = await local.label(bitmap);
  return result;
}

defineCamera(labeler);
