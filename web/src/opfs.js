// Storage of models in a browser: the origin private file system. Used in a dedicated worker, because only
// there can a file be written incrementally.
//
// A model is two files named by the hash of its URL: HASH.gguf, and HASH.json with {url, tag, total, done,
// used}. During a download the first one is appended to, so the download can be resumed.

import { SternaError } from "./errors.js";
import { download, noRoom } from "./download.js";

const FOLDER = "sterna-models";
/** Number of bytes after which the file is flushed. */
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

/** A file that is being downloaded. */
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
    // A browser may report a successful write, and then have no room for the data.
    if (this.#handle.getSize() !== this.#state.size)
      throw new DOMException("less was kept than was written", "QuotaExceededError");
    this.#state.total = this.#state.size;
  }

  close() {
    this.#handle.close();
  }
}

/**
 * The model with a URL, as a file. Downloads it unless it is stored already.
 *
 * @returns {Promise<File>}
 */
export async function stored(url, how) {
  try {
    const [dir, hash] = [await folder(), await hashOf(url)];
    // Another tab may be downloading it.
    return await navigator.locks.request(`sterna-model-${hash}`, { signal: how.signal }, async () => {
      const known = await readJson(dir, `${hash}.json`);
      const file = await dir.getFileHandle(`${hash}.gguf`, { create: true });
      if (known?.done !== true) await fill(dir, hash, url, known, file, how);
      return file.getFile();
    });
  } catch (error) {
    // Even the empty file or its metadata may not fit.
    if (error?.name === "QuotaExceededError") throw noRoom({ size: 0, total: null });
    throw error;
  }
}

async function fill(dir, hash, url, known, file, { signal, progress }) {
  const handle = await file.createSyncAccessHandle();
  const name = `${hash}.json`;
  // Without its metadata, a partial file cannot be used.
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

/** The stored models: {url, bytes, complete, used}. */
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

/** Removes the stored model of a URL; returns true if there was one. */
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
