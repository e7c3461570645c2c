// Entry point of the page: its two tabs, the labeler in use, and what the page says about it.

import { announce, applyPalette, byId, setText } from "./dom.js";
import { facts, useFacts } from "./labels.js";
import { Live } from "./live.js";
import { LocalLabeler } from "./local/labeler.js";
import { Clip } from "./camera.js";
import { Minute } from "./minute.js";
import { Photos } from "./photos.js";
import { pageFacts, serviceLabeler, serviceStatus } from "./service.js";
import { Recording } from "./record.js";
import { Round } from "./round.js";
import { Settings, isOn, keep } from "./settings.js";

const TABS = ["live", "photos"];
const ASK_AGAIN_MS = 3000;
const HERE = ["localhost", "127.0.0.1", "[::1]"];
const host = HERE.includes(location.hostname) ? "this machine" : location.host;
const megabytes = (bytes) => (bytes / 1e6).toFixed(1);

useFacts(JSON.parse(byId("facts").textContent));
applyPalette();
const service = serviceLabeler(askAgain);
const local = facts.local && new LocalLabeler(facts, new URL("page/", document.baseURI).href, showLabeler);
const labeler = () => (byId("local").checked ? local : service);
let status = null; // what the service runs
let live = null;
let asked = false;
const settings = new Settings(() => live?.apply());
byId("local").checked = !facts.service || (Boolean(local) && isOn("local"));
byId("local").disabled = !facts.service;
byId("local-field").hidden = !local;
byId("api").hidden = !facts.service;
live = new Live(labeler(), settings);
for (const Observer of [Recording, Minute, Round]) new Observer(live);
const photos = new Photos(labeler(), { show: () => choose("photos"), playVideo });

byId("local").addEventListener("change", () => {
  keep("local", byId("local").checked ? "1" : null);
  useLabeler();
});

function useLabeler() {
  live.use(labeler());
  photos.labeler = labeler();
  showLabeler();
  if (labeler() === local) local.open().then(() => announce("Local mode is ready"), localFailed);
}

/** The models of local mode cannot be loaded: back to the service, if there is one. */
function localFailed(error) {
  const why = `Local mode could not be loaded: ${error.message}.`;
  if (!facts.service) return banner(`${why} Reload the page to try again.`);
  banner(`${why} Local mode is off: pictures go to ${host}.`);
  if (labeler() !== local) return;
  byId("local").checked = false;
  if (live.source) live.stop(); // nothing is sent to the service without a click
  useLabeler();
}

/** One line in plain words above everything; empty removes it. */
function banner(text) {
  byId("banner").hidden = !text;
  setText(byId("banner-text"), text);
}
byId("banner-close").addEventListener("click", () => banner(""));

/** Say where pictures go, and what labels them. */
function showLabeler() {
  const isLocal = labeler() === local;
  const model = status?.model ?? facts.classifier;
  const explains = !isLocal && Boolean(status?.model?.explain);
  byId("attention-field").hidden = !explains;
  if (!explains) byId("attention").checked = false;
  setText(byId("trust"), isLocal ? "Nothing leaves this tab" : `Pictures go to ${host}`);
  setText(byId("host"), host);
  const { loaded = null, runs = null, why = "" } = /** @type {any} */ (local || {});
  const [value, max] = loaded ?? [];
  byId("loading").hidden = !isLocal || !max;
  if (max) Object.assign(byId("loading"), { value, max });
  if (local)
    setText(
      byId("place"),
      runs
        ? "Ready: pictures stay in this tab"
        : loaded
          ? `Loading ${loaded.map(megabytes).join(" of ")} MB`
          : why
            ? `Not loaded: ${why}`
            : sizeOfLocal(),
    );
  setText(byId("card"), `${model.labels.length} expressions, ${megabytes(model.parameters)} M parameters`);
  byId("card").title = model.name;
  setText(byId("accuracy"), accuracyOf(model));
  const running = isLocal
    ? runs
    : status && { ...status.ready, provider: status.ready.provider.replace("ExecutionProvider", "") };
  const faces = running && (running.detector === "builtin" ? "the built-in detector" : running.detector);
  setText(
    byId("runs"),
    running ? `It runs in ${running.precision} on ${running.provider}; faces are found by ${faces}.` : "",
  );
}

function sizeOfLocal() {
  return `Pictures stay in this tab. Loads ${megabytes(local.bytes)} MB once`;
}

/** Accuracy with the prior in use, on the first test set of the manifest, or else the first validation set. */
function accuracyOf({ metrics = [], prior }) {
  const scores = metrics.filter((score) => score.prior === prior);
  const score = scores.find(({ split }) => split === "test") ?? scores[0];
  if (!score) return "";
  const faces = score.split === "test" ? "test faces" : "validation faces";
  return `Right for ${Math.round(100 * score.accuracy.value)} of 100 ${faces}.`;
}

/** Ask what the service runs; one that does not respond is asked again, and may run another model then. */
async function askAgain() {
  if (!facts.service) return;
  const isFirst = !asked;
  asked = true;
  const [newest, now] = await Promise.all([isFirst ? null : pageFacts(), serviceStatus()]);
  if (newest) useFacts(newest);
  status = now;
  if (!status?.model) setTimeout(askAgain, ASK_AGAIN_MS);
  if (!status && labeler() !== local) banner("The service does not respond. The page goes on as soon as it does.");
  else if (byId("banner-text").textContent.startsWith("The service")) banner("");
  settings.read();
  showLabeler();
}

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
  await live.play(new Clip(file.name, async () => file));
  if (others)
    live.stage.note(`One video plays at a time: ${file.name}. Not opened: ${others} other${others > 1 ? "s" : ""}`);
}

addEventListener("hashchange", showTab);
showTab();
showLabeler();
askAgain();
if (facts.service && !local && isOn("local"))
  banner(`Local mode, which you chose, is not available now: pictures go to ${host}.`);
if (labeler() === local) (globalThis.requestIdleCallback ?? setTimeout)(() => local.open().catch(localFailed));
document.documentElement.dataset.ready = "";
byId(window.clicked)?.click(); // a button that was pressed before this ran
