// Small choices that this browser remembers. Where it refuses to, they last as long as the page.

const refused = new Map();

/** What was kept under `name`, or null. */
export function recall(name) {
  try {
    return localStorage.getItem(`sterna.${name}`);
  } catch {
    return refused.get(name) ?? null;
  }
}

/** Keeps a text; null forgets it. */
export function keep(name, text) {
  try {
    if (text === null) localStorage.removeItem(`sterna.${name}`);
    else localStorage.setItem(`sterna.${name}`, text);
  } catch {
    refused.set(name, text);
  }
}
