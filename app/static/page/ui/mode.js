// Switch between labeling by the service and in this tab; hidden if there is no choice.

import { isOn, keep } from "./choices.js";
import { announce, byId, setText } from "./dom.js";
import { facts, percent } from "../core/labels.js";
import { LocalLabeler } from "../local/labeler.js";
import { service } from "./service.js";

const HERE = ["localhost", "127.0.0.1", "[::1]"];
const megabytes = (bytes) => (bytes / 1e6).toFixed(1);

export class Mode {
  /** `status`: of serviceStatus(); `changed(labeler)` is called when the switch is used. */
  constructor(status, changed) {
    this.status = status;
    this.changed = changed;
    this.local = facts.local && new LocalLabeler(facts, {
      base: new URL("page/", document.baseURI).href,
      loaded: (bytes, total) => this.report({ loaded: [bytes, total] }),
      failed: (why) => this.report({ why }),
      opened: ({ precision, provider, detector }) => {
        this.report({ runs: ` in ${precision} in this tab (${provider}), faces by ${detectorName(detector)}` });
        if (this.isLocal) announce("Local mode is ready");
      },
    });
    this.loaded = null;
    this.runs = this.why = "";
    const input = byId("local");
    byId("local-field").hidden = !this.local;
    input.checked = !facts.service || (Boolean(this.local) && isOn("local"));
    input.disabled = !facts.service;
    input.addEventListener("change", () => {
      keep("local", input.checked ? "1" : null);
      this.apply();
    });
    this.host = HERE.includes(location.hostname) ? "this machine" : location.host;
    setText(byId("host"), this.host);
    this.show();
    if (facts.service && !this.local && isOn("local")) {
      setText(byId("state-text"), "Local mode, which you chose, is not available now: frames would go to the service.");
    }
  }

  /** Load the models before they are needed. */
  loadWhenIdle() {
    if (this.isLocal) (globalThis.requestIdleCallback ?? setTimeout)(() => this.local.open().catch(() => {})); // told by failed()
  }

  get isLocal() {
    return byId("local").checked;
  }

  get labeler() {
    return this.isLocal ? this.local : service;
  }

  apply() {
    this.show();
    this.changed(this.labeler);
    if (this.isLocal) this.local.open().catch(() => {}); // told by failed()
  }

  show() {
    const { status } = this;
    byId("by-service").hidden = this.isLocal;
    byId("in-tab").hidden = !this.isLocal;
    const explains = !this.isLocal && status?.model?.explain;
    byId("attention-field").hidden = !explains;
    if (!explains) byId("attention").checked = false;
    setText(byId("place"), this.isLocal ? this.localStatus() : `Pictures go to ${this.host}`);
    const [value, max] = this.loaded ?? [];
    byId("loading").hidden = !this.isLocal || !max;
    if (max) Object.assign(byId("loading"), { value, max });
    const model = status?.model ?? facts.classifier;
    setText(byId("card"), `${model.labels.length} expressions, ${megabytes(model.parameters)} M parameters${accuracyOf(model)}`);
    byId("card").title = model.name;
    if (this.isLocal) return setText(byId("runs"), this.runs || " in this tab");
    const device = status?.ready.provider.replace("ExecutionProvider", "");
    setText(byId("runs"), status ? ` in ${status.ready.precision} on ${device}, faces by ${detectorName(status.ready.detector)}` : "");
  }

  /** Show how far local mode is: bytes that are `loaded`, what `runs`, or `why` it does not. */
  report({ loaded = null, runs = "", why = "" }) {
    Object.assign(this, { loaded, runs, why });
    this.show();
  }

  localStatus() {
    if (this.loaded) return `Loading ${this.loaded.map(megabytes).join(" of ")} MB`;
    if (this.why) return `Not loaded: ${this.why}`;
    const { wasm, webgpu } = this.local.bytes;
    const size = navigator.gpu ? `${megabytes(wasm)} MB once, or ${megabytes(webgpu)} MB for a GPU` : `${megabytes(wasm)} MB once`;
    return this.runs ? "Ready: pictures stay in this tab" : `Pictures stay in this tab. Loads ${size}`;
  }
}

const detectorName = (detector) => (detector === "builtin" ? "the built-in detector" : detector);

/** Accuracy with the prior in use, on the first test set of the manifest, or else the first validation set. */
function accuracyOf({ metrics = [], prior }) {
  const scores = metrics.filter((score) => score.prior === prior);
  const score = scores.find(({ split }) => split === "test") ?? scores[0];
  return score ? `, ${percent(score.accuracy.value)} right on ${score.data} (${score.split})` : "";
}
