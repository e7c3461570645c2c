// Requests to the service. `service` has the same interface as local/labeler.js, which labels in this tab.

import { FrameSocket } from "./socket.js";

const TRIES = 4;

/** The labeler of the service; `reopened()`: see FrameSocket. */
export const serviceLabeler = (reopened) => ({ label, stream: () => new FrameSocket(reopened) });

/**
 * What the page and the program share (labels.js): `service`: whether there is one, `local`: whether there is a local
 * mode.
 */
export const pageFacts = () => json("page/facts.json");

/** What the service runs: {ready, model}; null if it does not respond. */
export async function serviceStatus() {
  const ready = await json("ready");
  const models = ready && (await json("v1/models"));
  return ready && { ready, model: models?.models?.[0] };
}

async function json(path) {
  const response = await fetch(path).catch(() => null);
  return response?.ok ? response.json() : null;
}

/**
 * Send one photo; `options` are those of the service. A busy service is tried again after the time that it states, one
 * that restarts too.
 */
async function label(file, options = {}) {
  // The bytes decide; the header must be an image's.
  const type = file.type.startsWith("image/") ? file.type : "image/jpeg";
  const wanted = Object.keys(options).filter((name) => options[name]);
  for (let attempt = 1; ; attempt++) {
    const response = await fetch(`v1/expressions?${wanted.map((name) => `${name}=true`).join("&")}`, {
      method: "POST", headers: { "Content-Type": type, Accept: "application/json" }, body: file,
    }).catch((error) => {
      if (attempt === TRIES) throw error;
      return null;
    });
    if (response) {
      const body = await response
        .json()
        .catch(() => ({
          status: response.status,
          title: "No result",
          detail: `HTTP status ${response.status} of a proxy${response.status === 413 ? ": too large" : ""}`,
        }));
      if (response.ok) return body;
      const busy = response.status === 429 || response.status === 503;
      if (!busy || attempt === TRIES) throw body;
    }
    await new Promise((done) => setTimeout(done, 1000 * (Number(response?.headers.get("Retry-After")) || attempt)));
  }
}
