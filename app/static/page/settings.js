// Settings of the live view, which outlive the page: in the browser's storage, and in the address, so that a bookmark
// keeps them.

import { byId, setText } from "./dom.js";
import { facts, percent } from "./labels.js";

/** The value of a choice, or null. The address comes first, as somebody may have shared it. */
export const choice = (name) => new URLSearchParams(location.search).get(name) ?? stored(name);

function stored(name) {
  try {
    return localStorage.getItem(`mien.${name}`);
  } catch {
    return null; // blocked by the user
  }
}

/** Whether the address or the storage says yes: a link does not turn off what the user turned on. */
export const isOn = (name) => [new URLSearchParams(location.search).get(name), stored(name)].includes("1");

/** Keep a choice; null forgets it. `shared`: also in the address. */
export function keep(name, value, { shared = true } = {}) {
  try {
    if (value === null) localStorage.removeItem(`mien.${name}`);
    else localStorage.setItem(`mien.${name}`, value);
  } catch {
    // the address keeps it
  }
  if (!shared) return;
  const address = new URL(location.href);
  if (value === null) address.searchParams.delete(name);
  else address.searchParams.set(name, value);
  history.replaceState(null, "", address);
}

export class Settings {
  /** `changed()` is called after every change. */
  constructor(changed) {
    this.changed = changed;
    byId("mirror").checked = choice("mirror") !== "0";
    byId("mirror").addEventListener("input", () => {
      keep("mirror", byId("mirror").checked ? null : "0");
      this.read();
    });
    byId("threshold").addEventListener("input", ({ target }) => {
      const isUsual = target.valueAsNumber === Math.round(100 * facts.classifier.confidence_threshold);
      keep("threshold", isUsual ? null : target.value);
      this.read();
    });
    this.read();
  }

  /**
   * Read the choices; the threshold is the model's own, which is finer than the slider, unless another one was chosen.
   */
  read() {
    const chosen = choice("threshold");
    const { confidence_threshold: usual } = facts.classifier;
    const isChosen = chosen !== null && chosen !== "" && Number(chosen) >= 0 && Number(chosen) <= 100;
    this.threshold = isChosen ? Number(chosen) / 100 : usual;
    this.mirror = byId("mirror").checked;
    byId("threshold").value = Math.round(100 * this.threshold);
    setText(byId("threshold-value"), `${percent(this.threshold)}${isChosen ? "" : ", as the model"}`);
    this.changed();
  }
}
