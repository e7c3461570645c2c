// Camera access: what may go wrong, in words that say what to do next.

/** Why the picture is missing: `kind` for the program, `title` and `text` for the person. */
export class CameraTrouble extends Error {
  constructor(kind, title, text) {
    super(title);
    Object.assign(this, { kind, title, text });
  }
}

const TROUBLES = {
  NotAllowedError: ["refused", "Camera access is blocked",
    "Allow it with the camera icon in the address bar (or in the browser's settings for this site), then try again."],
  NotFoundError: ["none", "No camera found", "Connect one and try again, or use photos instead."],
  NotReadableError: ["busy", "The camera is in use",
    "Another program or tab is using it. Close that one, then try again."],
};
TROUBLES.SecurityError = TROUBLES.NotAllowedError;
TROUBLES.AbortError = TROUBLES.NotReadableError;

function troubleOf(error) {
  const [kind, title, text] = TROUBLES[error.name] ?? ["failed", "The camera did not start", error.message];
  return new CameraTrouble(kind, title, text);
}

/** Open a camera; the one with `deviceId` where it is still there. Throws CameraTrouble. */
export async function openCamera(deviceId) {
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new CameraTrouble("insecure", "The camera needs a secure page",
      "Open this page over HTTPS, or as localhost on the machine that serves it. Samples, videos and photos work here as well.");
  }
  const size = { width: { ideal: 640 }, height: { ideal: 480 }, frameRate: { ideal: 30 } };
  try {
    return await navigator.mediaDevices.getUserMedia({
      audio: false,
      video: deviceId ? { ...size, deviceId: { exact: deviceId } } : { ...size, facingMode: "user" },
    });
  } catch (error) {
    if (deviceId && ["OverconstrainedError", "NotFoundError"].includes(error.name)) return openCamera(undefined);
    throw troubleOf(error);
  }
}

/** All cameras; their names are known once one has been allowed. */
export async function listCameras() {
  const devices = await navigator.mediaDevices.enumerateDevices();
  return devices.filter((device) => device.kind === "videoinput" && device.deviceId);
}
