// Sources of the live view: a camera or a video file, both played in one video element, and errors that say what to do.

import { byId, element } from "./dom.js";

const FRAME_MS = 1000 / 30;
const EARLY_MS = 8;

/** At most 30 frames per second in the mean: browsers show frames of a camera late, then early. */
export class Pace {
  next = 0;

  isDue(at) {
    return at > this.next - EARLY_MS;
  }

  took(at) {
    this.next = Math.max(this.next, at - FRAME_MS) + FRAME_MS;
  }
}

/** Reason for a missing picture: `kind` for the program, `title` and `text` for the user; `button`: what can help. */
export class SourceError extends Error {
  kind; title; text; button;

  constructor(kind, title, text, button = "Try again") {
    super(title);
    Object.assign(this, { kind, title, text, button });
  }
}

const ERRORS = {
  NotAllowedError: ["refused", "Camera access is blocked",
    "Allow it with the camera icon in the address bar (or in the browser's settings for this site), then try again."],
  NotFoundError: ["none", "No camera found", "Connect one and try again, or use photos instead."],
  OverconstrainedError: [
    "missing",
    "Your camera is not connected",
    "Connect the camera that you used before, or use another one.",
    "Use another camera",
  ],
  NotReadableError: [
    "busy",
    "The camera is in use",
    "Another program or tab is using it. Close that one, then try again.",
  ],
};
ERRORS.SecurityError = ERRORS.NotAllowedError;
ERRORS.AbortError = ERRORS.NotReadableError;
const IN_A_FRAME = [
  "refused",
  "The page around this one blocks the camera",
  'Its element needs allow="camera": <iframe allow="camera">. Or open this page by itself.',
];
const INSECURE = [
  "insecure",
  "The camera needs a secure page",
  "Open this page over HTTPS, or as localhost on the machine that serves it. Samples, videos and photos work here.",
  "",
];

/**
 * Whether the page around this one keeps the camera from it. Only Chromium tells; others do so in a frame of another
 * site.
 */
function isBlockedByFrame() {
  if (document.featurePolicy) return !document.featurePolicy.allowsFeature("camera");
  try {
    return !top.location.href;
  } catch {
    return true;
  }
}

/** The camera with `deviceId` if given, and no other. */
export class Camera {
  constructor(deviceId) {
    this.deviceId = deviceId;
    Object.assign(this, {
      name: "Camera",
      waiting: ["Waiting for the camera", "Choose “Allow” when your browser asks."],
      mirrored: true,
      isCamera: true,
    });
  }

  /** What the user should know while it runs, such as that its cover is closed. */
  get trouble() {
    return this.media.getVideoTracks()[0].muted ? "The camera sends no picture" : "";
  }

  async open() {
    if (!navigator.mediaDevices?.getUserMedia) throw new SourceError(...INSECURE);
    // wide, as browsers cut a third off the sides of most cameras to give 640x480
    const size = { width: { ideal: 1280 }, height: { ideal: 720 }, frameRate: { ideal: 30 } };
    const which = this.deviceId ? { deviceId: { exact: this.deviceId } } : { facingMode: "user" };
    try {
      this.media = await navigator.mediaDevices.getUserMedia({ audio: false, video: { ...size, ...which } });
    } catch (error) {
      if (error.name === "NotAllowedError" && isBlockedByFrame()) throw new SourceError(...IN_A_FRAME);
      throw new SourceError(...(ERRORS[error.name] ?? ["failed", "The camera did not start", error.message]));
    }
  }

  /**
   * Play it in a video element, if it is still wanted once the user allows it. `lost(error)` is called when it ends by
   * itself, `troubled()` when its trouble changes. Throws SourceError.
   */
  async attach(video, { isCurrent, lost, troubled }) {
    await this.open();
    if (!isCurrent()) return this.release(video);
    const [track] = this.media.getVideoTracks();
    track.addEventListener("ended", () =>
      lost(
        new SourceError(
          "lost",
          "Camera disconnected",
          "It was unplugged, or another program is using it.",
          "Start again",
        ),
      ),
    );
    for (const event of ["mute", "unmute"]) track.addEventListener(event, troubled);
    troubled(); // play() waits for a picture
    Object.assign(video, { loop: false, srcObject: this.media });
    await video.play();
    const settings = track.getSettings();
    this.mirrored = settings.facingMode !== "environment";
    this.deviceId = settings.deviceId;
    await offerCameras(this.deviceId);
  }

  release(video) {
    this.media?.getTracks().forEach((track) => track.stop());
    // A camera that was allowed late must not stop the next source.
    if (video.srcObject === this.media) video.srcObject = null;
  }
}

/**
 * List all cameras in the settings, whose names are known once one was allowed; the field is hidden if there is no
 * choice.
 */
export async function offerCameras(current) {
  const devices = await navigator.mediaDevices.enumerateDevices();
  const cameras = devices.filter((device) => device.kind === "videoinput" && device.deviceId);
  byId("camera").replaceChildren(
    ...cameras.map((camera, index) =>
      element(
        "option",
        { value: camera.deviceId, selected: camera.deviceId === current },
        camera.label || `Camera ${index + 1}`,
      ),
    ),
  );
  byId("camera-field").hidden = byId("flip").hidden = cameras.length < 2;
  return cameras;
}

/** A video: a file of the user, or `load()` resolves to one; `loop` for the sample. */
export class Clip {
  name; load; loop;

  constructor(name, load, { loop = false } = {}) {
    Object.assign(this, {
      name,
      load,
      loop,
      waiting: ["Loading the video", name],
      trouble: "",
      mirrored: false,
      isCamera: false,
    });
  }

  /** Throws SourceError if this browser cannot play it. */
  async attach(video, { lost, ended }) {
    const unplayable = () => new SourceError("unplayable", "This video does not play here",
      `Your browser cannot read ${this.name}. Most browsers play MP4 (H.264) and WebM.`, "Start camera");
    try {
      this.url = URL.createObjectURL(await this.load());
      Object.assign(video, { srcObject: null, src: this.url, loop: this.loop, onended: ended });
      await video.play();
    } catch {
      throw unplayable();
    }
    if (!video.videoWidth) throw unplayable(); // only its sound plays, such as HEVC in many browsers
    video.onerror = () => lost(unplayable());
  }

  release(video) {
    video.onended = video.onerror = null;
    video.removeAttribute("src");
    video.load();
    URL.revokeObjectURL(this.url);
  }
}

/** The sample, from the memory: WebKit repeats a video only if it can request parts of it. */
export const sampleClip = () => new Clip("Sample clip", async () => {
  const response = await fetch("page/samples/clip.webm");
  if (!response.ok) throw new Error(response.statusText);
  return response.blob();
}, { loop: true });
