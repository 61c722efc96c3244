// The package in a browser: every model has a worker, which runs the engine and reads and stores models. The
// page sends calls {id, call, args}, and receives {id, value} or {id, error}, after any number of {id,
// progress} and {id, event}. The worker requests a file that only the page can read with {reading, file, at,
// n}.

import { Chat, Generation, Model } from "./api.js";
import { SternaCrash, SternaError, packed, unpacked } from "./errors.js";
import { SOURCES, bytesOf, isBytes, isReader, progressOf } from "./readers.js";
import * as opfs from "./opfs.js";

export { Chat, Generation, Model, SternaCrash, SternaError };

/** The small model that is part of the package. */
export const demoModel = new URL("./world.gguf", import.meta.url);

const keepsFiles = () => globalThis.navigator?.storage?.getDirectory !== undefined;

/** Downloaded models. */
export const models = {
  list: async () => (keepsFiles() ? opfs.list() : []),
  remove: async (url) => keepsFiles() && opfs.remove(addressOf(url)),
  /** Asks the browser not to evict them; returns true if it agrees. */
  persist: async () => (await navigator.storage?.persist?.()) ?? false,
};

/** Loads a model: see `sterna.d.ts`. */
export async function load(source, { onProgress, signal, store = true, ...options } = {}) {
  signal?.throwIfAborted();
  const sources = (Array.isArray(source) ? source : [source]).map(sendable);
  const host = new WorkerHost(Array.isArray(source) ? source : [source]);
  try {
    const about = await host.call("open", { sources, store, options }, { onProgress, signal });
    host.about = about;
    return new Model(host);
  } catch (error) {
    host.end(error);
    throw error;
  }
}

/** A URL, resolved as the page would. */
const addressOf = (url) => new URL(url, globalThis.document?.baseURI ?? globalThis.location?.href).href;

/** Converts a source to a form that can be sent to a worker. */
function sendable(source) {
  if (isBytes(source)) return { bytes: bytesOf(source) };
  if (source instanceof Blob) return { blob: source };
  if (isReader(source)) return { size: source.size };
  if (source instanceof URL || typeof source === "string") return { url: addressOf(source) };
  throw new SternaError(`load: want ${SOURCES}`);
}

/** A host in a worker. */
class WorkerHost {
  about;
  #worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module", name: "sterna" });
  #files;
  #calls = new Map();
  #id = 0;
  /** The error that ended it. */
  #ended = null;

  constructor(files) {
    this.#files = files;
    this.#worker.addEventListener("message", ({ data }) => this.#take(data));
    this.#worker.addEventListener("error", (event) => {
      event.preventDefault();
      const why = event.message ?? "its script could not be loaded";
      this.end(new SternaCrash(`the engine's worker has stopped: ${why}`));
    });
  }

  call(call, args, { onProgress, signal, listener } = {}) {
    if (this.#ended !== null) return Promise.reject(this.#ended);
    this.#id += 1;
    const id = this.#id;
    const abort = () => this.#worker.postMessage({ abort: id, error: packed(signal.reason) });
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { resolve, reject, onProgress, listener });
      signal?.addEventListener("abort", abort, { once: true });
      this.#worker.postMessage({ id, call, args });
    })
      .catch((error) => {
        throw signal?.aborted ? signal.reason : error;
      })
      .finally(() => signal?.removeEventListener("abort", abort));
  }

  add(options, listener) {
    return this.call("add", options, { listener });
  }

  cancel(sequence) {
    return this.call("cancel", sequence);
  }

  encode(text) {
    return this.call("encode", text);
  }

  async close() {
    this.end(new DOMException("the model was disposed", "AbortError"));
  }

  /** Ends the worker, and so frees all its memory. */
  end(error) {
    if (this.#ended !== null) return;
    this.#ended = error.name === "AbortError" ? new SternaError(error.message) : error;
    this.#worker.terminate();
    const calls = [...this.#calls.values()];
    this.#calls.clear();
    for (const { reject, listener } of calls) {
      reject(error);
      listener?.({ error });
    }
  }

  #take({ id, value, error, progress, event, reading, ...asked }) {
    if (reading !== undefined) return this.#read(reading, asked);
    const call = this.#calls.get(id);
    if (progress !== undefined) {
      const { phase, loaded, total } = progress;
      return call?.onProgress?.(progressOf(phase, loaded, total));
    }
    if (event !== undefined) {
      const failure = event.error === undefined ? null : unpacked(event.error);
      if (failure !== null || event.end !== undefined) this.#calls.delete(id);
      call?.listener(failure === null ? event : { error: failure });
      if (failure instanceof SternaCrash) this.end(failure);
      return undefined;
    }
    // A call with a listener continues until the listener has received its end.
    if (call?.listener === undefined || error !== undefined) this.#calls.delete(id);
    if (error === undefined) return call?.resolve(value);
    const failure = unpacked(error);
    call?.reject(failure);
    if (failure instanceof SternaCrash) this.end(failure);
    return undefined;
  }

  async #read(reading, { file, at, n }) {
    try {
      this.#worker.postMessage({ reading, bytes: await this.#files[file].read(at, n) });
    } catch (error) {
      this.#worker.postMessage({ reading, error: packed(error) });
    }
  }
}
