// The stage of the live view: a card that says its state, messages over the picture, the position in a video, and the
// keyboard.

import { announce, byId, clock, setText } from "./dom.js";

const NOTE_MS = 4000;
const LONG_WAIT_MS = 5000;
const SHORTCUTS = { " ": "pause", f: "fullscreen", r: "record" };

export class Stage {
  state; badgeText = ""; noteText = "";

  constructor(video) {
    this.root = byId("stage");
    this.video = video;
    for (const event of ["durationchange", "timeupdate", "emptied"])
      video.addEventListener(event, () => this.showPosition());
    for (const event of ["loadedmetadata", "resize"]) video.addEventListener(event, () => this.takeShape());
    document.addEventListener("keydown", (event) => this.press(event));
    this.enter("idle");
  }

  /** Show a state: `live` and `paused` show the picture, all others a card with a message. */
  enter(
    state,
    {
      title = "What expression does each face show?",
      text = "Live or in photos. Nothing is stored.",
      button = "Start camera",
      error = false,
      choices = true,
    } = {},
  ) {
    clearTimeout(this.waitTimer);
    const showsPicture = ["live", "paused"].includes(state);
    const hadFocus = [byId("state"), byId("controls")].some((part) => part.contains(document.activeElement));
    const isFirst = !this.state;
    this.state = state;
    Object.assign(this.root.dataset, { state, kind: error ? "error" : "calm" });
    byId("state").hidden = showsPicture;
    byId("controls").hidden = !showsPicture;
    setText(byId("pause-text"), state !== "paused" ? "Pause" : this.video.ended ? "Play again" : "Resume");
    byId("pause").setAttribute("aria-pressed", String(state === "paused"));
    if (showsPicture) return;
    setText(byId("state-title"), title);
    setText(byId("state-text"), text);
    byId("start").hidden = !button;
    byId("cancel").hidden = state !== "asking";
    setText(byId("start-text"), button);
    byId("choices").hidden = !choices;
    if (!isFirst) announce(`${title}. ${text}`);
    if (hadFocus || error) (state === "asking" ? byId("cancel") : button ? byId("start") : byId("state-title")).focus();
    if (state === "asking") this.waitTimer = setTimeout(() => this.showWayOut(), LONG_WAIT_MS);
  }

  showWayOut() {
    setText(byId("state-text"), "Look for the camera sign in the address bar, and choose “Allow” there.");
    byId("choices").hidden = false;
    announce(byId("state-text").textContent);
  }

  /** A message that stays until the next; empty removes it. */
  badge(text) {
    if (text && text !== this.badgeText) announce(text);
    this.badgeText = text;
    this.showMessage();
  }

  /** A message of some seconds. */
  note(text) {
    announce(text);
    this.noteText = text;
    clearTimeout(this.noteTimer);
    this.noteTimer = setTimeout(() => {
      this.noteText = "";
      this.showMessage();
    }, NOTE_MS);
    this.showMessage();
  }

  showMessage() {
    const text = this.noteText || this.badgeText;
    byId("badge").hidden = !text;
    setText(byId("badge"), text);
  }

  showPosition() {
    const { duration, currentTime } = this.video;
    byId("seek").hidden = !(Number.isFinite(duration) && duration > 0); // a camera has no end
    if (byId("seek").hidden) return;
    Object.assign(byId("seek"), { max: duration, value: currentTime });
    byId("seek").setAttribute("aria-valuetext", `${clock(currentTime)} of ${clock(duration)}`);
  }

  /** On a phone, the stage has the aspect ratio of the picture. */
  takeShape() {
    const { videoWidth: width, videoHeight: height } = this.video;
    if (width && height) this.root.style.setProperty("--ratio", String(width / height));
  }

  press(event) {
    const button = byId(SHORTCUTS[event.key.toLowerCase()]);
    const isTaken = event.target.closest(
      event.key === " " ? "input, select, dialog, button, summary, a" : "input, select, dialog",
    );
    if (
      !button ||
      isTaken ||
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      event.repeat ||
      !button.getClientRects().length
    )
      return;
    event.preventDefault();
    button.click();
  }
}
