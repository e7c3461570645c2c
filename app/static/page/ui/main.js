// Entry point of the page: its two tabs, and the labeler in use.

import { applyPalette, byId, element, swatch } from "./dom.js";
import { showExample } from "./example.js";
import { Gallery } from "./gallery.js";
import { LABELS, setLabels } from "../core/labels.js";
import { Live } from "./live.js";
import { Mode } from "./mode.js";
import { workOffline } from "./offline.js";
import { pageFacts, serviceFacts } from "./service.js";
import { Clip } from "./source.js";

const TABS = ["live", "photos"];
const ASK_AGAIN_MS = 3000;
applyPalette();
const here = await pageFacts();
const found = here.service ? await serviceFacts() : null;
const mode = new Mode(here, found, (labeler) => {
  live.use(labeler);
  gallery.labeler = labeler;
});
const live = new Live(mode.labeler, askAgain);

function choose(name, { focus = false } = {}) {
  for (const tab of TABS) {
    const button = byId(`tab-${tab}`);
    button.setAttribute("aria-selected", String(tab === name));
    button.tabIndex = tab === name ? 0 : -1;
    byId(`panel-${tab}`).hidden = tab !== name;
  }
  if (focus) byId(`tab-${name}`).focus();
  live.attend();
  if (location.hash !== `#${name}`) history.replaceState(null, "", `#${name}`);
}

function listenToTabs() {
  for (const tab of TABS) byId(`tab-${tab}`).addEventListener("click", () => choose(tab));
  document.querySelector("[role=tablist]").addEventListener("keydown", (event) => {
    if (!["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return;
    event.preventDefault();
    const open = TABS.findIndex((tab) => !byId(`panel-${tab}`).hidden);
    const place = { ArrowLeft: open - 1, ArrowRight: open + 1, Home: 0, End: TABS.length - 1 }[event.key];
    choose(TABS[(place + TABS.length) % TABS.length], { focus: true });
  });
}

async function playVideo(file, others) {
  choose("live");
  await live.play(new Clip(file.name, URL.createObjectURL(file), { own: true }));
  if (others) live.stage.note(`One video plays at a time: ${file.name}. Not opened: ${others} other${others > 1 ? "s" : ""}`);
}

/** Take the labels and the threshold of the model. A service that does not state them yet is asked again. */
function describeModel() {
  const classifier = mode.found?.model ?? here.pipeline?.classifier;
  if (!classifier) setTimeout(askAgain, ASK_AGAIN_MS);
  else setLabels(classifier.labels);
  const entry = (label) => element("li", {}, swatch(label), label);
  byId("legend").replaceChildren(...LABELS.map(entry), element("li", {}, element("span", { class: "swatch line", "aria-hidden": "true" }), "threshold"));
  live.model = classifier?.name;
  const threshold = classifier?.confidence_threshold ?? classifier?.abstain_threshold;
  if (threshold !== undefined) live.settings.setThreshold(threshold);
}

async function askAgain() {
  mode.found = await serviceFacts();
  mode.show();
  describeModel();
}

listenToTabs();
const gallery = new Gallery(mode.labeler, { show: () => choose("photos"), playVideo });
const follow = () => choose(location.hash === "#photos" ? "photos" : "live");
addEventListener("hashchange", follow);
follow();
describeModel();
byId("api").hidden = !here.service;
showExample();
workOffline(!here.service);
for (const part of document.querySelectorAll("[inert]")) part.inert = false; // until here, a click would be lost
