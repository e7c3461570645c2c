// Settings of the live view: mirror, landmarks, frame rate, smoothing, threshold. Changes outlive the page (choices.js).

import { byId, setText } from "./dom.js";
import { choice, keep } from "./choices.js";
import { facts, percent } from "../core/labels.js";

const CHECKED = ["mirror", "landmarks", "statistics"];
const SLIDERS = ["smoothing", "threshold"];

export class Settings {
  /** `changed()` is called after every change. */
  constructor(changed) {
    this.changed = changed;
    for (const name of CHECKED) {
      const kept = choice(name);
      if (kept !== null) byId(name).checked = kept === "1";
      this.listenTo(name, () => String(Number(byId(name).checked)));
    }
    byId("smoothing").defaultValue = String(facts.tracking.smoothing_s);
    for (const name of SLIDERS) {
      const kept = choice(name);
      if (kept && Number.isFinite(Number(kept))) byId(name).value = kept;
      else if (kept !== null) keep(name, null); // the browser would take the middle of the slider
      this.listenTo(name, () => byId(name).value);
    }
    byId("mirror").addEventListener("input", () => (this.mirrors = byId("mirror").checked));
    byId("reset").addEventListener("click", () => this.reset());
    this.mirrors = byId("mirror").checked;
    this.read();
  }

  listenTo(name, value) {
    byId(name).addEventListener("input", () => {
      keep(name, value());
      this.read();
    });
  }

  /** Read the controls; the threshold is the model's own, which is finer than the slider, unless another one was chosen. */
  read() {
    this.mirrored = byId("mirror").checked;
    this.landmarks = byId("landmarks").checked;
    this.statistics = byId("statistics").checked;
    this.smoothingMs = 1000 * byId("smoothing").valueAsNumber;
    const { confidence_threshold: usual } = facts.classifier;
    if (choice("threshold") === null) byId("threshold").value = Math.round(100 * usual);
    this.threshold = choice("threshold") === null ? usual : byId("threshold").valueAsNumber / 100;
    setText(byId("smoothing-value"), this.smoothingMs ? `${(this.smoothingMs / 1000).toFixed(2)} s` : "off");
    setText(byId("threshold-value"), percent(this.threshold));
    this.changed(this);
  }

  /** Mirror a source as chosen if it `canMirror`: a video is never mirrored. */
  setMirrored(canMirror) {
    byId("mirror").checked = canMirror && this.mirrors;
    this.read();
  }

  reset() {
    for (const name of CHECKED) byId(name).checked = byId(name).defaultChecked;
    for (const name of SLIDERS) byId(name).value = byId(name).defaultValue;
    for (const name of [...CHECKED, ...SLIDERS]) keep(name, null);
    this.mirrors = true;
    this.read();
  }
}
