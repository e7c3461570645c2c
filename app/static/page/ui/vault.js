// Recordings that are not saved yet, in IndexedDB: a reload or a crash does not lose them. Nothing is sent.

const LOCK = "mien-recording-";
let database;

function open() {
  database ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("mien", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("parts", { autoIncrement: true });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return database;
}

async function run(mode, act) {
  const transaction = (await open()).transaction("parts", mode);
  const request = act(transaction.objectStore("parts"));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
}

/** Keep a part of a recording: {id, ...}. */
export const keepPart = (part) => run("readwrite", (parts) => parts.add(part));

/** Mark a recording as in progress until the returned function is called, so that other tabs do not offer it. */
export function hold(id) {
  let release;
  const held = new Promise((done) => (release = done));
  navigator.locks?.request(LOCK + id, () => held);
  return release;
}

/** Parts of the newest recording that is neither saved nor in progress, in order; empty if there is none. */
export async function unsaved() {
  const parts = await run("readonly", (store) => store.getAll());
  const held = (await navigator.locks?.query())?.held.map(({ name }) => name) ?? [];
  const id = parts.map((part) => part.id).filter((one) => !held.includes(LOCK + one)).sort().at(-1);
  return parts.filter((part) => part.id === id);
}

/** Remove all parts of a recording. */
export function remove(id) {
  return run("readwrite", (parts) => {
    parts.openCursor().onsuccess = ({ target: { result: cursor } }) => {
      if (!cursor) return;
      if (cursor.value.id === id) cursor.delete();
      cursor.continue();
    };
  });
}
