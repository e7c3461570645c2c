// Entry point of the page: its two tabs, and the labeler in use.

import { applyPalette, byId, element, swatch } from "./dom.js";
import { Gallery } from "./gallery.js";
import { LABELS, facts, useFacts } from "../core/labels.js";
import { Live } from "./live.js";
import { Mode } from "./mode.js";
import { pageFacts, serviceStatus } from "./service.js";
import { Clip } from "./source.js";
import { plotColor } from "../core/plot.js";

const TABS = ["live", "photos"];
const ASK_AGAIN_MS = 3000;
useFacts(await pageFacts());
const mode = new Mode(facts.service ? await serviceStatus() : null, (labeler) => {
  live.use(labeler);
  gallery.labeler = labeler;
});
const live = new Live(mode.labeler, askAgain);

/** Show the tab that the address names. */
function showTab() {
  const chosen = TABS.find((tab) => location.hash === `#${tab}`) ?? "live";
  for (const tab of TABS) {
    byId(`tab-${tab}`).ariaCurrent = tab === chosen ? "page" : null;
    byId(`panel-${tab}`).hidden = tab !== chosen;
  }
  live.attend();
}

function choose(tab) {
  location.hash = tab;
  showTab(); // the event comes later
}

async function playVideo(file, others) {
  choose("live");
  await live.player.play(new Clip(file.name, async () => file));
  if (others) live.stage.note(`One video plays at a time: ${file.name}. Not opened: ${others} other${others > 1 ? "s" : ""}`);
}

/** Show the labels and use the threshold of the model. A service that is not ready yet is asked again. */
function describeModel() {
  if (facts.service && !mode.status?.model) setTimeout(askAgain, ASK_AGAIN_MS);
  applyPalette();
  const entry = (label) => {
    const color = swatch(label);
    color.style.background = plotColor(label);
    return element("li", {}, color, label);
  };
  byId("legend").replaceChildren(...LABELS.map(entry), element("li", {}, element("span", { class: "swatch line", "aria-hidden": "true" }), "threshold"));
  live.settings.read();
}

async function askAgain() {
  useFacts(await pageFacts());
  mode.status = await serviceStatus();
  mode.show();
  describeModel();
}

const gallery = new Gallery(mode.labeler, { show: () => choose("photos"), playVideo });
addEventListener("hashchange", showTab);
showTab();
describeModel();
byId("api").hidden = !facts.service;
mode.loadWhenIdle();
for (const part of document.querySelectorAll("[inert]")) part.inert = false; // until here, a click would be lost
