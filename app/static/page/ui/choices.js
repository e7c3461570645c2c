// Choices that outlive the page: in the browser's storage, and in the address, so that a bookmark keeps them.

/** The value of a choice, or null. The address comes first, as somebody may have shared it. */
export function choice(name) {
  return new URLSearchParams(location.search).get(name) ?? stored(name);
}

function stored(name) {
  try {
    return localStorage.getItem(`mien.${name}`);
  } catch {
    return null; // blocked by the user
  }
}

/** Whether the address or the storage says yes: a link does not turn off what the user turned on. */
export const isOn = (name) => [new URLSearchParams(location.search).get(name), stored(name)].includes("1");

/** Keep a choice; null forgets it. `shared`: also in the address. */
export function keep(name, value, { shared = true } = {}) {
  try {
    if (value === null) localStorage.removeItem(`mien.${name}`);
    else localStorage.setItem(`mien.${name}`, value);
  } catch {
    // the address keeps it
  }
  if (!shared) return;
  const address = new URL(location.href);
  if (value === null) address.searchParams.delete(name);
  else address.searchParams.set(name, value);
  history.replaceState(null, "", address);
}
