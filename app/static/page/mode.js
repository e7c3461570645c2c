// Switch between labeling by the service and in this tab; hidden if there is no choice.

import { isOn, keep } from "./choices.js";
import { byId, setText } from "./dom.js";
import { LocalLabeler } from "./local/labeler.js";
import { service } from "./service.js";

const HERE = ["localhost", "127.0.0.1", "[::1]"];

export class Mode {
  /** `here`: of pageFacts(); `found`: of serviceFacts(); `changed(labeler)` is called when the switch is used. */
  constructor(here, found, changed) {
    Object.assign(this, { found, changed });
    this.local = here.pipeline && new LocalLabeler(here.pipeline, (runs) => this.isLocal && this.showLocal(runs));
    const input = byId("local");
    byId("local-field").hidden = !this.local;
    input.checked = !here.service || (Boolean(this.local) && isOn("local"));
    input.disabled = !here.service;
    input.addEventListener("change", () => {
      keep("local", input.checked ? "1" : null);
      this.apply();
    });
    setText(byId("host"), HERE.includes(location.hostname) ? "this machine" : location.host);
    this.show();
    if (here.service && !this.local && isOn("local")) {
      setText(byId("state-text"), "Local mode, which you chose, is not available now: frames would go to the service.");
    }
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
    if (this.isLocal) this.local.open().catch((error) => setText(byId("runs"), `: ${error.message}`));
  }

  show() {
    const { found } = this;
    byId("by-service").hidden = this.isLocal;
    byId("in-tab").hidden = !this.isLocal;
    const explains = !this.isLocal && found?.model?.explain;
    byId("look").hidden = byId("attention-field").hidden = !explains;
    if (!explains) byId("attention").checked = false;
    if (this.isLocal) return this.showLocal({ model: this.local.facts.classifier.name });
    setText(byId("card"), found?.ready.model ?? "unknown");
    const device = found?.ready.provider.replace("ExecutionProvider", "");
    setText(byId("runs"), found ? ` in ${found.ready.precision} on ${device}, faces by ${found.ready.detector}` : "");
  }

  showLocal({ model, precision, provider, detector }) {
    setText(byId("card"), model);
    setText(byId("runs"), precision ? ` in ${precision} in this tab (${provider}), faces by ${detector}` : " in this tab");
  }
}
