// Sources of the stage: a camera or a video file, both played in one video element.

import { CameraError, listCameras, openCamera } from "./camera.js";
import { byId, element } from "./dom.js";

/** A video file of this page or of the user; `loop` for the sample. */
export class Clip {
  constructor(name, url, { loop = false, own = false } = {}) {
    Object.assign(this, { name, url, loop, own, mirrored: false });
  }

  async attach(video, { ended }) {
    Object.assign(video, { srcObject: null, src: this.url, loop: this.loop });
    video.onended = ended;
    await video.play();
    if (!video.videoWidth) throw new Error("only its sound plays"); // such as HEVC in many browsers
  }

  release(video) {
    video.onended = null;
    video.removeAttribute("src");
    video.load();
    if (this.own) URL.revokeObjectURL(this.url);
  }
}

export class Camera {
  constructor(deviceId) {
    Object.assign(this, { name: "Camera", deviceId, mirrored: true });
  }

  async open() {
    this.media = await openCamera(this.deviceId);
  }

  async attach(video, { gone, mute, unmute }) {
    const [track] = this.media.getVideoTracks();
    track.addEventListener("ended", gone);
    track.addEventListener("mute", mute);
    track.addEventListener("unmute", unmute);
    if (track.muted) mute(); // play() waits for a picture
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
  const options = cameras.map((camera, place) =>
    element("option", { value: camera.deviceId, selected: camera.deviceId === current }, camera.label || `Camera ${place + 1}`));
  byId("camera").replaceChildren(...options);
  byId("camera-field").hidden = cameras.length < 2;
  return cameras;
}

/** Error for a clip that does not play. */
export function unplayable({ name }) {
  return new CameraError("unplayable", "This video does not play here",
    `Your browser cannot read ${name}. Most browsers play MP4 (H.264) and WebM.`);
}
