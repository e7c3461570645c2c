// Registers the service worker (sw.js), and hands it what this page has loaded already.

/** Resolves when the worker keeps what the page loads. `isStatic`: whether the page is a folder of files, which only the service worker can isolate. */
export async function workOffline(isStatic) {
  if (!navigator.serviceWorker) return; // not a secure page
  const first = !navigator.serviceWorker.controller;
  await navigator.serviceWorker.register("sw.js").catch(() => null);
  const { active } = await navigator.serviceWorker.ready;
  const loaded = performance.getEntriesByType("resource").map(({ name }) => name).filter((name) => name.includes("/page/") && !name.includes("/page/models/"));
  if (first) active.postMessage([location.href.split(/[?#]/)[0], ...loaded]);
  const gains = isStatic && !self.crossOriginIsolated && navigator.hardwareConcurrency > 2; // one thread is left to the page
  if (gains && first && document.getElementById("stage").dataset.state === "idle") location.reload();
  if (!navigator.serviceWorker.controller) await new Promise((done) => navigator.serviceWorker.addEventListener("controllerchange", done, { once: true }));
}
