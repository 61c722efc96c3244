// The public API: models, chats, and streamed text. It does not depend on threads: a host, in this thread or
// in a worker, runs the engine.

import { SternaError } from "./errors.js";

/** Separates the package's own options from the engine's. */
const splitOptions = ({ signal, onPrompt, ...engine } = {}) => ({ signal, onPrompt, engine });

/** Streamed text: iterate over its pieces, or await `result`. It continues even without a reader. */
export class Generation {
  /** {text, tokens, stopReason, stats, seed, forgotten}; rejects with the same errors as the iteration. */
  result;
  #pieces = [];
  #ended = false;
  #error = null;
  #wake = null;
  #stop = () => {};
  #settle;

  /** `begin(listener)` adds the sequence, with the result of `Host.add`; `cancel(id)` ends it. */
  constructor(begin, cancel, { signal, onPrompt }) {
    this.result = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
    });
    // A caller that only iterates gets the error there.
    this.result.catch(() => {});
    this.#run(begin, cancel, signal, onPrompt);
  }

  /** Ends the text now: the iteration and `result` end normally, with the reason `cancelled`. */
  stop() {
    this.#stop();
  }

  async *[Symbol.asyncIterator]() {
    try {
      for (;;) {
        while (this.#pieces.length > 0) yield this.#pieces.shift();
        if (this.#error !== null) throw this.#error;
        if (this.#ended) return;
        await new Promise((resolve) => {
          this.#wake = resolve;
        });
      }
    } finally {
      // Leaving the loop stops the generation.
      this.stop();
    }
  }

  async #run(begin, cancel, signal, onPrompt) {
    const text = [];
    const tokens = [];
    let added = null;
    let isStopped = false;
    const stop = () => {
      if (isStopped || this.#ended) return;
      isStopped = true;
      if (added !== null) cancel(added.id).catch(() => {});
    };
    this.#stop = stop;
    const abort = () => {
      stop();
      this.#end(signal.reason);
    };
    try {
      signal?.throwIfAborted();
      signal?.addEventListener("abort", abort, { once: true });
      let listener;
      const ended = new Promise((resolve, reject) => {
        listener = ({ error, prompt, text: piece, tokens: picked, end }) => {
          if (error !== undefined) return reject(error);
          if (prompt !== undefined) return this.#ended ? undefined : onPrompt?.(prompt);
          tokens.push(...picked);
          if (piece !== "" && !this.#ended) {
            text.push(piece);
            this.#pieces.push(piece);
            this.#wake?.();
          }
          if (end === undefined) return undefined;
          return end.fault === undefined ? resolve(end) : reject(new SternaError(end.fault));
        };
      });
      const begun = begin(listener).then((sequence) => {
        added = sequence;
        if (isStopped) cancel(added.id).catch(() => {});
      });
      const [{ reason, stats }] = await Promise.all([ended, begun]);
      const { seed, forgotten } = added;
      this.#end(null, { text: text.join(""), tokens, stopReason: reason, stats, seed, forgotten });
    } catch (error) {
      this.#end(error);
    } finally {
      signal?.removeEventListener("abort", abort);
    }
  }

  #end(error, result) {
    if (this.#ended) return;
    this.#ended = true;
    this.#error = error;
    if (error === null) this.#settle.resolve(result);
    else this.#settle.reject(error);
    this.#wake?.();
  }
}

/** A conversation with the chat template of the model's file. */
export class Chat {
  /** The messages so far: {role, content}. May be changed between turns. */
  messages;
  /** Context positions used by the last turn. */
  used = 0;
  #model;

  constructor(model, { system, messages = [] } = {}) {
    this.#model = model;
    this.messages = [...(system === undefined ? [] : [{ role: "system", content: system }]), ...messages];
  }

  /**
   * Sends `text` to the model. The answer is kept, even if it was stopped early, unless it is empty or
   * failed. If the context is full, the oldest turns are dropped.
   */
  send(text, options) {
    const messages = [...this.messages, { role: "user", content: text }];
    const said = this.#model.generate(messages, options);
    const kept = ({ text: content, stats, forgotten }) => {
      this.used = stats.promptTokens + stats.tokens;
      if (content === "") return;
      const first = messages[0]?.role === "system" ? 1 : 0;
      messages.splice(first, forgotten);
      this.messages = [...messages, { role: "assistant", content }];
    };
    said.result.then(kept, () => {});
    return said;
  }

  /** Drops all messages except the system message. */
  clear() {
    this.messages = this.messages.filter(({ role }, at) => at === 0 && role === "system");
    this.used = 0;
  }
}

/** A loaded model. */
export class Model {
  /** The model's name in the file, or null. */
  name;
  /** The architecture in the file. */
  architecture;
  /** Maximum positions of the context. */
  nCtx;
  /** Maximum positions in training. */
  nCtxTrain;
  /** True if the file has a chat template. */
  chats;
  /** The device it runs on. */
  device;
  /** Bytes used on the device. */
  plan;
  /** Default sampling options. */
  sampling;
  /** Notices about the file and the options, one sentence each. */
  notices;
  #host;

  constructor(host) {
    this.#host = host;
    const { name, architecture, nCtx, nCtxTrain, chats, device, plan, sampling, notices } = host.about;
    Object.assign(this, { name, architecture, nCtx, nCtxTrain, chats, device, plan, sampling, notices });
  }

  /** Continues a text or tokens, or answers a list of messages {role, content}. */
  generate(input, options) {
    const { engine, ...own } = splitOptions(options);
    const isTurns = Array.isArray(input) && typeof input[0] === "object";
    // JSON would turn a typed array into an object.
    const prompt = ArrayBuffer.isView(input) ? [...input] : input;
    const asked = isTurns ? { messages: input } : { prompt };
    const begin = (listener) => this.#host.add({ ...engine, ...asked }, listener);
    return new Generation(begin, (id) => this.#host.cancel(id), own);
  }

  /** A conversation: {system, messages}. */
  chat(options) {
    if (!this.chats)
      throw new SternaError("the file has no chat template; load it with chatTemplate, or use generate");
    return new Chat(this, options);
  }

  /** The tokens of a text. */
  tokenize(text) {
    return this.#host.encode(text);
  }

  /** Frees the model and its memory. */
  dispose() {
    return this.#host.close();
  }

  [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")]() {
    return this.dispose();
  }
}
