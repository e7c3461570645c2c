// Sources of the stage: a camera or a video file, both played in one video element.

import { CameraError, listCameras, openCamera } from "./camera.js";
import { byId, element } from "./dom.js";

/** A video: a file of the user, or `open()` resolves to one; `loop` for the sample. */
export class Clip {
  constructor(name, open, { loop = false } = {}) {
    this.name = name;
    this.open = open;
    this.loop = loop;
    this.trouble = "";
    this.mirrored = false;
    this.hasCuts = true;
  }

  async attach(video, { ended, broken }) {
    this.url = URL.createObjectURL(await this.open());
    Object.assign(video, { srcObject: null, src: this.url, loop: this.loop, onended: ended });
    await video.play();
    if (!video.videoWidth) throw new Error("only its sound plays"); // such as HEVC in many browsers
    video.onerror = broken;
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

export class Camera {
  constructor(deviceId) {
    this.name = "Camera";
    this.deviceId = deviceId;
    this.mirrored = true;
    this.hasCuts = false;
  }

  /** What the user should know while it runs, such as that its cover is closed. */
  get trouble() {
    return this.media.getVideoTracks()[0].muted ? "The camera sends no picture" : "";
  }

  async open() {
    this.media = await openCamera(this.deviceId);
  }

  async attach(video, { gone, troubled }) {
    const [track] = this.media.getVideoTracks();
    track.addEventListener("ended", gone);
    for (const event of ["mute", "unmute"]) track.addEventListener(event, troubled);
    troubled(); // play() waits for a picture
    video.loop = false;
    video.srcObject = this.media;
    await video.play();
    const settings = track.getSettings();
    this.mirrored = settings.facingMode !== "environment";
    this.usedId = settings.deviceId;
    await offerCameras(this.usedId);
  }

  release(video) {
    this.media?.getTracks().forEach((track) => track.stop());
    if (video.srcObject === this.media) video.srcObject = null; // a camera that was allowed late must not stop the next source
  }
}

/** List all cameras in the settings; the field is hidden if there is no choice. */
export async function offerCameras(current) {
  const cameras = await listCameras();
  const options = cameras.map((camera, index) =>
    element("option", { value: camera.deviceId, selected: camera.deviceId === current }, camera.label || `Camera ${index + 1}`));
  byId("camera").replaceChildren(...options);
  byId("camera-field").hidden = byId("flip").hidden = cameras.length < 2;
  return cameras;
}

/** Error for a clip that does not play. */
export function unplayable({ name }) {
  return new CameraError("unplayable", "This video does not play here",
    `Your browser cannot read ${name}. Most browsers play MP4 (H.264) and WebM.`);
}
