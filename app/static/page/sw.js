// Service worker: the page can be installed and reloaded offline, and graphs, whose addresses state a version, are fetched
// once. All else comes from the network while there is one; requests to the API are left alone. On a web server that does
// not isolate the page, it adds the headers with which WebAssembly uses several threads. Ports are reused: when another app
// answers at this address, the worker leaves, with its cache.

const CACHE = "mien";
const ROOT = new URL("./", self.location);
const PAGES = ["", "index.html", "card", "card.html"];
const MARK = '<meta name="application-name" content="Mien">';
const ISOLATED = {
  "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp", "Cross-Origin-Resource-Policy": "same-origin",
};

const pathOf = (url) => (url.href.startsWith(ROOT.href) ? url.pathname.slice(ROOT.pathname.length) : null);
const isOurs = (path) => path !== null && (path.startsWith("page/") || PAGES.includes(path));

self.addEventListener("install", (event) => {
  self.skipWaiting();
  event.waitUntil(caches.open(CACHE));
});
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));
// what the page loaded before this worker was there
self.addEventListener("message", (event) => event.waitUntil(Promise.all(event.data.map((address) => respond(new Request(address)).catch(() => null)))));
self.addEventListener("fetch", (event) => {
  const { method, mode, url } = event.request;
  const path = pathOf(new URL(url));
  const isForeign = mode === "navigate" && !PAGES.includes(path); // a page in a folder `page/` of another app
  if (method === "GET" && isOurs(path) && !isForeign) event.respondWith(respond(event.request));
});

async function respond(request) {
  if (!(await caches.has(CACHE))) return fetch(request); // it has left
  const url = new URL(request.url);
  const cache = await caches.open(CACHE);
  const key = url.searchParams.has("v") ? url.href : url.origin + url.pathname; // other parameters are choices of the user
  const known = url.searchParams.has("v") && (await cache.match(key));
  if (known) return known;
  try {
    const original = await fetch(request);
    if (PAGES.includes(pathOf(url)) && original.status === 200 && !(await original.clone().text()).includes(MARK)) {
      await Promise.all([caches.delete(CACHE), self.registration.unregister()]);
      return original;
    }
    const response = isolated(original);
    if (response.status === 200) {
      if (url.searchParams.has("v")) await cache.delete(url.href, { ignoreSearch: true }); // earlier versions
      await cache.put(key, response.clone()).catch(() => null); // the disk is full
    }
    return response;
  } catch (error) {
    const kept = await cache.match(key);
    if (kept) return kept;
    throw error;
  }
}

function isolated(response) {
  if (response.status !== 200 || response.headers.has("Cross-Origin-Embedder-Policy")) return response;
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(ISOLATED)) headers.set(name, value);
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}
