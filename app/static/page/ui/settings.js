// Settings of the live view: mirror, landmarks, frame rate, smoothing, threshold. Changes outlive the page (choices.js).

import { byId, setText } from "./dom.js";
import { choice, keep } from "./choices.js";
import { percent } from "../core/labels.js";

const VALUES = { mirror: "checked", landmarks: "checked", statistics: "checked", smoothing: "value", threshold: "value" };

export class Settings {
  /** `changed()` is called after every change. */
  constructor(changed) {
    this.changed = changed;
    for (const [name, property] of Object.entries(VALUES)) {
      const kept = choice(name);
      if (property === "checked") byId(name).checked = kept === null ? byId(name).checked : kept === "1";
      else if (kept && Number.isFinite(Number(kept))) byId(name).value = kept;
      else if (kept !== null) keep(name, null); // the browser would take the middle of the slider
      byId(name).addEventListener("input", () => {
        keep(name, property === "checked" ? String(Number(byId(name).checked)) : byId(name).value);
        this.read();
      });
    }
    byId("reset").addEventListener("click", () => this.reset());
    this.mirrors = byId("mirror").checked;
    this.listen();
    this.read();
  }

  listen() {
    byId("mirror").addEventListener("input", () => (this.mirrors = byId("mirror").checked));
    byId("settings").addEventListener("click", () => this.open(byId("settings-panel").hidden));
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || byId("settings-panel").hidden) return;
      this.open(false);
      byId("settings").focus();
    });
    document.addEventListener("pointerdown", (event) => {
      if (!event.target.closest("#settings-panel, #settings")) this.open(false);
    });
  }

  open(open) {
    byId("settings-panel").hidden = !open;
    byId("settings").setAttribute("aria-expanded", String(open));
  }

  read() {
    this.mirrored = byId("mirror").checked;
    this.landmarks = byId("landmarks").checked;
    this.statistics = byId("statistics").checked;
    this.smoothingMs = 1000 * byId("smoothing").valueAsNumber;
    const threshold = byId("threshold").valueAsNumber / 100;
    // exact, not rounded to the slider's step
    this.threshold = choice("threshold") === null ? this.modelThreshold ?? threshold : threshold;
    setText(byId("smoothing-value"), this.smoothingMs ? `${(this.smoothingMs / 1000).toFixed(2)} s` : "off");
    setText(byId("threshold-value"), percent(this.threshold));
    this.changed(this);
  }

  /** Mirror a source as chosen if it `canMirror`: a video is never mirrored. */
  setMirrored(canMirror) {
    byId("mirror").checked = canMirror && this.mirrors;
    this.read();
  }

  /** Start from the model's own threshold, unless another one was chosen. */
  setThreshold(threshold) {
    this.modelThreshold = threshold;
    if (choice("threshold") === null) byId("threshold").value = Math.round(100 * threshold);
    this.read();
  }

  reset() {
    for (const [name, property] of Object.entries(VALUES)) {
      keep(name, null);
      byId(name)[property] = byId(name)[property === "checked" ? "defaultChecked" : "defaultValue"];
    }
    this.mirrors = true;
    this.setThreshold(this.modelThreshold ?? 0);
  }
}
