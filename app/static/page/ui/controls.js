// Controls of the live view: shortcuts, the position in a video, those behind More, and fullscreen, in which they hide.

import { byId, clock } from "./dom.js";

const HIDE_MS = 3000;
const SHORTCUTS = { " ": "pause", f: "fullscreen" };

/** `sought()` is called after a jump in the video. */
export function listenToControls(stage, sought) {
  listenToKeys();
  listenToPosition(stage.video, sought);
  listenToFullscreen(stage);
  byId("more").addEventListener("click", () => {
    const open = byId("controls").classList.toggle("open");
    byId("more").setAttribute("aria-expanded", String(open));
  });
}

function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    const button = byId(SHORTCUTS[event.key.toLowerCase()]);
    const isTaken = event.target.closest(event.key === " " ? "input, select, dialog, button, summary, a" : "input, select, dialog");
    if (!button || isTaken || event.ctrlKey || event.metaKey || event.altKey || event.repeat || !button.getClientRects().length) return;
    event.preventDefault();
    button.click();
  });
}

function listenToPosition(video, sought) {
  const seek = byId("seek");
  const show = () => {
    seek.hidden = !(Number.isFinite(video.duration) && video.duration > 0); // a camera has no end
    if (seek.hidden) return;
    Object.assign(seek, { max: video.duration, value: video.currentTime });
    seek.setAttribute("aria-valuetext", `${clock(video.currentTime)} of ${clock(video.duration)}`);
  };
  for (const event of ["durationchange", "timeupdate", "emptied"]) video.addEventListener(event, show);
  seek.addEventListener("input", () => {
    video.currentTime = seek.valueAsNumber;
    sought();
  });
}

function listenToFullscreen(stage) {
  const view = byId("view");
  byId("fullscreen").hidden = !document.fullscreenEnabled; // not on iPhones
  byId("fullscreen").addEventListener("click", () => {
    if (document.fullscreenElement) document.exitFullscreen();
    else view.requestFullscreen().catch((error) => stage.note(`No fullscreen: ${error.message}`));
  });
  let timer;
  const wake = () => {
    view.classList.remove("idle");
    clearTimeout(timer);
    timer = setTimeout(() => view.classList.toggle("idle", !byId("settings-panel").matches(":popover-open")), HIDE_MS);
  };
  for (const event of ["pointermove", "pointerdown", "keydown", "fullscreenchange"]) view.addEventListener(event, wake);
}
