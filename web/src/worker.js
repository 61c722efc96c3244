// Runs the engine in its own worker. The protocol is described in `browser.js`.

import { InMemory, download } from "./download.js";
import { SternaError, packed, unpacked } from "./errors.js";
import { Host } from "./host.js";
import { stored } from "./opfs.js";
import { abortable, ofBlobAtOnce, ofBytes, settled } from "./readers.js";

let host = null;
/** Abort controllers of running calls, by id. */
const aborts = new Map();
/** Reads that the page has not answered yet. */
const readings = new Map();

const calls = {
  async open(id, { sources, store, options }) {
    const abort = new AbortController();
    aborts.set(id, abort);
    const { signal } = abort;
    const tell = (phase) => (loaded, total) => postMessage({ id, progress: { phase, loaded, total } });
    try {
      const files = [];
      for (const [at, source] of sources.entries()) {
        const reader = await readerOf(source, { at, store, signal, progress: tell("download") });
        files.push(abortable(reader, signal));
      }
      host = await Host.open(files, options, tell("load"));
      return host.about;
    } catch (error) {
      throw signal.aborted ? signal.reason : error;
    } finally {
      aborts.delete(id);
    }
  },
  add(id, options) {
    const listener = ({ error, ...event }) =>
      postMessage({ id, event: error === undefined ? event : { error: packed(error) } });
    return host.add(options, listener);
  },
  cancel: (_, sequence) => host.cancel(sequence),
  encode: (_, text) => host.encode(text),
};

async function readerOf({ bytes, blob, size, url }, { at, store, signal, progress }) {
  if (bytes !== undefined) return ofBytes(bytes);
  if (blob !== undefined) return ofBlobAtOnce(blob);
  if (size !== undefined) return settled({ size, read: (from, n) => readByPage(at, from, n) });
  return ofBlobAtOnce(await fetched(url, { store, signal, progress }));
}

async function fetched(url, { store, signal, progress }) {
  if (store !== false && navigator.storage?.getDirectory !== undefined) {
    try {
      return await stored(url, { signal, progress });
    } catch (error) {
      // The browser stores nothing for this page, for instance in a private window.
      if (error?.name !== "SecurityError") throw error;
    }
  }
  const place = new InMemory();
  await download(url, place, { signal, progress });
  return place.blob();
}

/** The page has the file, so it is asked to read. */
function readByPage(file, at, n) {
  const reading = crypto.randomUUID();
  return new Promise((resolve, reject) => {
    readings.set(reading, { resolve, reject });
    postMessage({ reading, file, at, n });
  });
}

addEventListener("message", async ({ data: { id, call, args, abort, reading, bytes, error } }) => {
  if (abort !== undefined) {
    aborts.get(abort)?.abort(unpacked(error));
  } else if (reading !== undefined) {
    const { resolve, reject } = readings.get(reading);
    readings.delete(reading);
    if (error === undefined) resolve(bytes);
    else reject(unpacked(error));
  } else {
    try {
      if (host === null && call !== "open") throw new SternaError("the model is not loaded");
      postMessage({ id, value: await calls[call](id, args) });
    } catch (error) {
      postMessage({ id, error: packed(error) });
    }
  }
});
