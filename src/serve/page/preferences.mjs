// Small choices stored in the browser. If storage is disabled, they last as long as the page.

const refused = new Map();

/** The value stored under `name`, or null. */
export function recall(name) {
  try {
    return localStorage.getItem(`sterna.${name}`);
  } catch {
    return refused.get(name) ?? null;
  }
}

/** Stores a text; null removes it. */
export function keep(name, text) {
  try {
    if (text === null) localStorage.removeItem(`sterna.${name}`);
    else localStorage.setItem(`sterna.${name}`, text);
  } catch {
    refused.set(name, text);
  }
}
