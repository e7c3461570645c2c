// Entry of the npm package, for other pages: label(image) and <mien-camera>. They label in the tab, as local mode does.
// `make page` adds the runtime, the models and facts.json to this folder, and a page loads them from its own origin.

import { useFacts } from "./core/labels.js";
import { LocalLabeler } from "./local/labeler.js";
import { uprightBitmap } from "./core/upright.js";
import { defineCamera } from "./ui/camera-element.js";

const FOLDER = import.meta.url.replace(/[^/]*$/, "");
let opened;

/**
 * The labeler that label() and <mien-camera> share. Models are loaded on first use; `loaded(bytes, total)` shows it. `base`: address
 * of this folder, relative to the document; needed if a bundler moves this module.
 * @param {{base?: string | null, loaded?: (bytes: number, total: number) => void}} options
 */
export function labeler({ base, loaded } = {}) {
  opened ??= open(base ? new URL(base, document.baseURI).href : FOLDER, loaded).catch((error) => {
    opened = undefined; // the next call tries again
    throw error;
  });
  return opened;
}

async function open(folder, loaded) {
  const base = folder.endsWith("/") ? folder : `${folder}/`;
  const address = new URL("facts.json", base).href;
  const response = await fetch(address);
  const facts = await response.json().catch(() => null); // many servers answer with a page
  if (!response.ok || !facts?.classifier) throw new Error(`${address} was not found. Serve the folder that \`make page\` writes, and state its address as \`base\``);
  if (!facts.local) throw new Error(`${address} has no models: run \`make page\`, or \`make runtime\` before \`make serve\``);
  useFacts(facts);
  return new LocalLabeler(facts, { base, loaded });
}

/** Label the faces of an image: a Blob, a URL, or an element that shows a picture. */
export async function label(image) {
  const local = await labeler();
  const isAddress = typeof image === "string" || image instanceof URL;
  const source = isAddress ? await (await fetch(image)).blob() : image;
  const bitmap = await (source instanceof Blob ? uprightBitmap(source, { colorSpaceConversion: "none" }) : createImageBitmap(source));
  const { images: [result] } = await local.label(bitmap);
  return result;
}

if (globalThis.customElements) defineCamera(labeler); // not while a server renders
