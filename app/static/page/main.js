// The page: two tabs, and what runs behind it.

import { byId, setText } from "./dom.js";
import { Live } from "./live.js";
import { Photos } from "./photos.js";

const TABS = ["live", "photos"];
const live = new Live();

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

async function tellWhatRuns() {
  const answer = await fetch("ready").catch(() => null);
  const ready = answer?.ok ? await answer.json() : null;
  setText(byId("card"), ready?.model ?? "unknown");
  const device = ready?.provider.replace("ExecutionProvider", "");
  const models = ready && await fetch("v1/models").then((found) => found.json()).catch(() => null);
  const explains = Boolean(models?.models?.[0]?.explain);
  byId("look").hidden = byId("attention-field").hidden = !explains;
  setText(byId("runs"), ready ? ` in ${ready.precision} on ${device}, faces by ${ready.detector}` : "");
}

setText(byId("host"), ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname) ? "this machine" : location.host);
listenToTabs();
new Photos(() => choose("photos"));
choose(location.hash === "#photos" ? "photos" : "live");
tellWhatRuns();
document.documentElement.dataset.ready = "yes";
