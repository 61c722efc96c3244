// Models that a browser keeps: the origin's private file system. Used in a dedicated worker, where alone a
// file can be written piece by piece.
//
// A model is two files named by the hash of its address: HASH.gguf, and HASH.json with {url, tag, total,
// done, used}. While it is loaded the first is written behind its end, so what is there can be gone on
// from.

import { SternaError } from "./errors.js";
import { download, noRoom } from "./download.js";

const FOLDER = "sterna-models";
/** Bytes after which what was written is made to last. */
const FLUSH_BYTES = 32 << 20;

const folder = async () =>
  (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER, { create: true });

async function hashOf(url) {
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(url));
  return [...new Uint8Array(hash, 0, 16)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A file as JSON, or null. */
async function readJson(dir, name) {
  try {
    return JSON.parse(await (await (await dir.getFileHandle(name)).getFile()).text());
  } catch {
    return null;
  }
}

async function writeJson(dir, name, value) {
  const handle = await (await dir.getFileHandle(name, { create: true })).createSyncAccessHandle();
  try {
    const bytes = new TextEncoder().encode(JSON.stringify(value));
    handle.truncate(0);
    handle.write(bytes, { at: 0 });
    handle.flush();
  } finally {
    handle.close();
  }
}

/** A file that is being loaded. */
class Place {
  #state;
  #handle;
  #changed;
  #unflushed = 0;

  constructor(state, handle, changed) {
    this.#state = state;
    this.#handle = handle;
    this.#changed = changed;
  }

  state() {
    return this.#state;
  }

  begin(tag, total) {
    this.#handle.truncate(0);
    this.#state = { size: 0, tag, total };
    this.#changed(this.#state);
  }

  write(bytes) {
    const at = this.#state.size;
    for (let done = 0; done < bytes.length;) {
      const n = this.#handle.write(bytes.subarray(done), { at: at + done });
      if (n === 0) throw new DOMException("nothing was written", "QuotaExceededError");
      done += n;
      this.#state.size = at + done;
    }
    this.#unflushed += bytes.length;
    if (this.#unflushed >= FLUSH_BYTES) {
      this.#handle.flush();
      this.#unflushed = 0;
    }
  }

  finish() {
    this.#handle.flush();
    // A browser may say that it has written what it then has no room for.
    if (this.#handle.getSize() !== this.#state.size)
      throw new DOMException("less was kept than was written", "QuotaExceededError");
    this.#state.total = this.#state.size;
  }

  close() {
    this.#handle.close();
  }
}

/**
 * The model of an address, as a file, which is downloaded unless it is here.
 *
 * @returns {Promise<File>}
 */
export async function stored(url, how) {
  try {
    const [dir, hash] = [await folder(), await hashOf(url)];
    // Another tab may be loading it.
    return await navigator.locks.request(`sterna-model-${hash}`, { signal: how.signal }, async () => {
      const known = await readJson(dir, `${hash}.json`);
      const file = await dir.getFileHandle(`${hash}.gguf`, { create: true });
      if (known?.done !== true) await fill(dir, hash, url, known, file, how);
      return file.getFile();
    });
  } catch (error) {
    // Not even a name, or the note of what it is, may fit.
    if (error?.name === "QuotaExceededError") throw noRoom({ size: 0, total: null });
    throw error;
  }
}

async function fill(dir, hash, url, known, file, { signal, progress }) {
  const handle = await file.createSyncAccessHandle();
  const name = `${hash}.json`;
  // Without a note of what it is, what is there is of no use.
  if (known === null) handle.truncate(0);
  const state = { size: handle.getSize(), tag: known?.tag ?? null, total: known?.total ?? null };
  let noted = Promise.resolve();
  const note = ({ tag, total }, done = false) => {
    noted = noted.then(() => writeJson(dir, name, { url, tag, total, done, used: Date.now() }));
  };
  const place = new Place(state, handle, note);
  try {
    await download(url, place, { signal, progress });
    note(place.state(), true);
  } finally {
    place.close();
    await noted;
  }
}

/** What is kept: {url, bytes, complete, used}. */
export async function list() {
  const dir = await folder();
  const found = [];
  for await (const name of dir.keys()) {
    if (!name.endsWith(".json")) continue;
    const known = await readJson(dir, name);
    const file = await dir.getFileHandle(name.replace(/json$/, "gguf")).catch(() => null);
    if (known === null || file === null) continue;
    const { size: bytes } = await file.getFile();
    found.push({ url: known.url, bytes, complete: known.done === true, used: new Date(known.used) });
  }
  return found.sort((a, b) => b.used - a.used);
}

/** Removes what is kept of an address; says whether there was something. */
export async function remove(url) {
  const [dir, hash] = [await folder(), await hashOf(url)];
  let found = false;
  for (const name of [`${hash}.json`, `${hash}.gguf`]) {
    try {
      await dir.removeEntry(name);
      found = true;
    } catch (error) {
      if (error.name === "NoModificationAllowedError") {
        throw new SternaError(`${url} is being downloaded`, { cause: error });
      }
      if (error.name !== "NotFoundError") throw error;
    }
  }
  return found;
}
