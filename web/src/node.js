// The package in Node and Deno: the engine runs in the caller's thread, and models are stored in a cache
// folder of the user.

import * as fs from "node:fs";
import { fileURLToPath } from "node:url";

import { Chat, Generation, Model } from "./api.js";
import { InMemory, download } from "./download.js";
import { SternaCrash, SternaError } from "./errors.js";
import * as folder from "./folder.js";
import { Host } from "./host.js";
import {
  SOURCES,
  abortable,
  bytesOf,
  isBytes,
  isReader,
  ofBlob,
  ofBytes,
  progressOf,
  settled,
} from "./readers.js";

export { Chat, Generation, Model, SternaCrash, SternaError };

/** The small model that is part of the package. */
export const demoModel = new URL("./world.gguf", import.meta.url);

/** Downloaded models. */
export const models = {
  list: () => folder.list(),
  remove: (url) => folder.remove(String(url)),
  /** Files on this machine are never evicted. */
  persist: async () => true,
};

/** Loads a model: see `sterna.d.ts`. */
export async function load(source, { onProgress, signal, store = true, gpu, ...options } = {}) {
  signal?.throwIfAborted();
  if (gpu !== undefined) takeGpu(gpu);
  const tell = (phase) => (loaded, total) => onProgress?.(progressOf(phase, loaded, total));
  const sources = Array.isArray(source) ? source : [source];
  const opened = [];
  try {
    for (const one of sources) {
      opened.push(await readerOf(one, { signal, store, progress: tell("download") }));
    }
    const files = opened.map(({ reader }) => abortable(reader, signal));
    return new Model(await Host.open(files, options, tell("load")));
  } catch (error) {
    throw signal?.aborted ? signal.reason : error;
  } finally {
    // The engine has read everything: the weights have been copied to the device.
    for (const { close } of opened) close?.();
  }
}

async function readerOf(source, { signal, store, progress }) {
  if (isBytes(source)) return { reader: ofBytes(bytesOf(source)) };
  if (source instanceof Blob) return { reader: await ofBlob(source) };
  if (isReader(source)) return { reader: await settled(source) };
  if (!(source instanceof URL) && typeof source !== "string")
    throw new SternaError(`load: want ${SOURCES}`);
  const text = String(source);
  if (!/^https?:/i.test(text)) return ofFile(/^file:/i.test(text) ? fileURLToPath(text) : text);
  if (store !== false) return ofFile(await folder.stored(text, { signal, progress }));
  const place = new InMemory();
  await download(text, place, { signal, progress });
  return { reader: await ofBlob(place.blob()) };
}

function ofFile(path) {
  let file;
  try {
    file = fs.openSync(path, "r");
  } catch (error) {
    throw new SternaError(`${path}: ${error.message}`, { cause: error });
  }
  const read = (at, n) => {
    const bytes = new Uint8Array(n);
    let done = 0;
    for (let got = 1; done < n && got > 0; done += got)
      got = fs.readSync(file, bytes, done, n - done, at + done);
    return bytes.subarray(0, done);
  };
  return { reader: { size: fs.fstatSync(file).size, read }, close: () => fs.closeSync(file) };
}

/** Sets the GPU that the engine uses; Node has none built in. */
function takeGpu(gpu) {
  if (globalThis.navigator === undefined) globalThis.navigator = {};
  Object.defineProperty(globalThis.navigator, "gpu", { value: gpu, configurable: true });
  // Without a class of this name, wgpu assumes that this thread has no GPU.
  globalThis.WorkerGlobalScope ??= class WorkerGlobalScope {};
}
