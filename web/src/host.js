// Runs the engine in this thread: a WebAssembly module, its models, and the loop that runs their steps.
//
// A module can only run one call at a time that may wait: its stack is suspended while it waits for a GPU,
// and stacks of a module must end in the order in which they started.

import { choose, deviceOf } from "./device.js";
import { SternaCrash, SternaError, ofModule } from "./errors.js";

/** A module. A thread has one, and gets a new one after a crash. */
class Module {
  glue;
  /** The error that ended it. */
  crash = null;
  #turn = Promise.resolve();

  /** Runs calls of the module one at a time. */
  call(action) {
    const call = this.#turn.then(async () => {
      if (this.crash !== null) throw this.crash;
      try {
        return await action(this.glue);
      } catch (error) {
        const known = ofModule(error);
        if (known instanceof SternaCrash) this.crash = known;
        throw known;
      }
    });
    this.#turn = call.catch(() => {});
    return call;
  }
}

/** The modules of this thread, with and without grammars. */
const current = new Map();
let started = 0;

async function moduleOf(structured) {
  if (!current.has(structured) || (await current.get(structured)).crash !== null) {
    current.set(structured, begun(structured));
  }
  try {
    return await current.get(structured);
  } catch (error) {
    current.delete(structured);
    throw error;
  }
}

async function begun(structured) {
  const before = started;
  started += 1;
  withoutSuspension();
  const module = new Module();
  module.glue = await glue(structured, before);
  await module.glue.default({ module_or_path: await wasm(structured) });
  return module;
}

/** The bindings hold a single module. After a crash, they are imported again under another URL. */
function glue(structured, before) {
  if (before === 0) return structured ? import("./structured.js") : import("./engine.js");
  const name = structured ? "structured" : "engine";
  return import(/* @vite-ignore */ `./${name}.js?${before}`);
}

/** The bytes of the module, or a response with them. */
async function wasm(structured) {
  const url = structured
    ? new URL("./structured_bg.wasm", import.meta.url)
    : new URL("./engine_bg.wasm", import.meta.url);
  if (url.protocol !== "file:") return fetch(url);
  const { readFile } = await import(/* @vite-ignore */ "node:fs/promises");
  return readFile(url);
}

/** Allows the CPU backend to run without stack suspension, because it never waits. */
function withoutSuspension() {
  if (typeof WebAssembly.Suspending === "function") return;
  WebAssembly.Suspending = function Suspending(call) {
    return call;
  };
  WebAssembly.promising =
    (call) =>
    (...args) =>
      call(...args);
}

/** Lets other work in this thread run: messages, timers, the network. */
const others =
  globalThis.setImmediate !== undefined
    ? () => new Promise((resolve) => setImmediate(resolve))
    : () =>
        new Promise((resolve) => {
          const { port1, port2 } = new MessageChannel();
          port1.onmessage = () => {
            port1.close();
            resolve();
          };
          port2.postMessage(null);
        });

/** A loaded model in this thread. */
export class Host {
  about;
  #module;
  #model;
  /** Listeners of the sequences, by id. */
  #listeners = new Map();
  #running = false;

  /**
   * Loads a model from its files, readers {size, read(at, n)} in order. `options` are the engine's;
   * `progress` is called with (loaded, total) bytes of weights.
   */
  static async open(files, { backend: wanted, structured = false, ...options }, progress) {
    const { backend, why } = await choose(wanted);
    const module = await moduleOf(structured);
    const host = new Host();
    host.#module = module;
    host.#model = await module.call((glue) =>
      glue.Model.open(files, JSON.stringify({ ...options, backend }), progress),
    );
    const about = JSON.parse(host.#model.about());
    host.about = { ...about, device: await deviceOf(about, why) };
    return host;
  }

  /**
   * Adds a sequence. `listener` is called with {text, tokens, end?} for new text, with {prompt: {done,
   * total}} before the first token, and with {error} if the device fails.
   *
   * @returns {Promise<{id: number, seed: string, forgotten: number}>}
   */
  async add(options, listener) {
    const added = await this.#call((model) => {
      const added = JSON.parse(model.add(JSON.stringify(options)));
      this.#listeners.set(added.id, listener);
      return added;
    });
    this.#run();
    return added;
  }

  /** Ends a sequence, and notifies its listener. */
  cancel(id) {
    return this.#module.call(() => this.#model?.cancel(id));
  }

  /** The tokens of a text. */
  encode(text) {
    return this.#call((model) => [...model.encode(text)]);
  }

  /** Frees the model. Its running sequences end. */
  async close() {
    this.#fail(new DOMException("the model was disposed", "AbortError"));
    if (this.#module.crash !== null) return;
    await this.#module.call(() => {
      this.#model?.free();
      this.#model = null;
    });
  }

  #call(action) {
    return this.#module.call(() => {
      if (this.#model === null) throw new SternaError("the model was disposed");
      return action(this.#model);
    });
  }

  async #run() {
    if (this.#running) return;
    this.#running = true;
    try {
      while (this.#listeners.size > 0) {
        const [events, standings] = await this.#module.call(async () => {
          if (this.#model === null) return [[], []];
          const events = JSON.parse(await this.#model.step());
          return [events, events.length > 0 ? [] : JSON.parse(this.#model.standings())];
        });
        for (const { id, ...event } of events) {
          const listener = this.#listeners.get(id);
          if (event.end !== undefined) this.#listeners.delete(id);
          listener?.(event);
        }
        for (const { id, prompt: total, cached: done } of standings) {
          if (done < total) this.#listeners.get(id)?.({ prompt: { done, total } });
        }
        await others();
      }
    } catch (error) {
      this.#fail(error);
    } finally {
      this.#running = false;
    }
  }

  #fail(error) {
    const ended = [...this.#listeners];
    this.#listeners.clear();
    for (const [id, listener] of ended) {
      // After a crash, there is nothing to cancel in the module.
      this.cancel(id).catch(() => {});
      listener({ error });
    }
  }
}
