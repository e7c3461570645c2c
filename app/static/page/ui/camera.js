// Camera access, with errors that say what to do.

/** Reason for a missing picture: `kind` for the program, `title` and `text` for the user. */
export class CameraError extends Error {
  constructor(kind, title, text) {
    super(title);
    this.kind = kind;
    this.title = title;
    this.text = text;
  }
}

const ERRORS = {
  NotAllowedError: ["refused", "Camera access is blocked",
    "Allow it with the camera icon in the address bar (or in the browser's settings for this site), then try again."],
  NotFoundError: ["none", "No camera found", "Connect one and try again, or use photos instead."],
  OverconstrainedError: ["missing", "Your camera is not connected", "Connect the camera that you used before, or use another one."],
  NotReadableError: ["busy", "The camera is in use",
    "Another program or tab is using it. Close that one, then try again."],
};
ERRORS.SecurityError = ERRORS.NotAllowedError;
ERRORS.AbortError = ERRORS.NotReadableError;

const IN_A_FRAME = ["refused", "The page around this one blocks the camera", 'Its element needs allow="camera": <iframe allow="camera">. Or open this page by itself.'];

/** Whether the page around this one keeps the camera from it. Only Chromium tells; others do so in a frame of another site. */
function isBlockedByFrame() {
  if (document.featurePolicy) return !document.featurePolicy.allowsFeature("camera");
  try {
    return !top.location.href;
  } catch {
    return true;
  }
}

function cameraErrorOf(error) {
  if (error.name === "NotAllowedError" && isBlockedByFrame()) return new CameraError(...IN_A_FRAME);
  const [kind, title, text] = ERRORS[error.name] ?? ["failed", "The camera did not start", error.message];
  return new CameraError(kind, title, text);
}

/** Open a camera: the one with `deviceId` if given, and no other. Throws CameraError. */
export async function openCamera(deviceId) {
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new CameraError("insecure", "The camera needs a secure page",
      "Open this page over HTTPS, or as localhost on the machine that serves it. Samples, videos and photos work here as well.");
  }
  // wide, as browsers cut a third off the sides of most cameras to give 640x480
  const size = { width: { ideal: 1280 }, height: { ideal: 720 }, frameRate: { ideal: 30 } };
  try {
    return await navigator.mediaDevices.getUserMedia({
      audio: false,
      video: deviceId ? { ...size, deviceId: { exact: deviceId } } : { ...size, facingMode: "user" },
    });
  } catch (error) {
    throw cameraErrorOf(error);
  }
}

/** All cameras; their names are available after the user has allowed one. */
export async function listCameras() {
  const devices = await navigator.mediaDevices.enumerateDevices();
  return devices.filter((device) => device.kind === "videoinput" && device.deviceId);
}
