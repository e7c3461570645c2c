// Settings of the live view: mirror, landmarks, smoothing, threshold. They are kept until the page is closed.

import { byId, setText } from "./dom.js";
import { percent } from "./labels.js";

export class Settings {
  /** `changed()` is called after every change. */
  constructor(changed) {
    this.changed = changed;
    this.mirrored = true;
    this.landmarks = false;
    this.listen();
    this.read();
  }

  listen() {
    for (const name of ["mirror", "landmarks", "smoothing", "threshold"]) byId(name).addEventListener("input", () => this.read());
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
    this.settleMs = 1000 * byId("smoothing").valueAsNumber;
    this.threshold = byId("threshold").valueAsNumber / 100;
    setText(byId("smoothing-value"), this.settleMs ? `${(this.settleMs / 1000).toFixed(2)} s` : "off");
    setText(byId("threshold-value"), percent(this.threshold));
    this.changed(this);
  }

  setMirrored(mirrored) {
    byId("mirror").checked = mirrored;
    this.read();
  }

  /** Start from the model's own threshold. */
  setThreshold(threshold) {
    byId("threshold").value = Math.round(100 * threshold);
    this.read();
    this.threshold = threshold; // exact, not rounded to the slider's step
    this.changed(this);
  }
}
