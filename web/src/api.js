// What a program sees: models, chats, and text that comes piece by piece. It knows no thread: a host, here or
// in a worker, does what is asked.

import { SternaError } from "./errors.js";

/** Options that are the package's; the others are the engine's. */
const splitOptions = ({ signal, onPrompt, ...engine } = {}) => ({ signal, onPrompt, engine });

/** Text as it comes: iterate over its pieces, or await `result`. It goes on even if nobody listens. */
export class Generation {
  /** {text, tokens, stopReason, stats, seed, forgotten}; rejects as the iteration throws. */
  result;
  #pieces = [];
  #ended = false;
  #error = null;
  #wake = null;
  #stop = () => {};
  #settle;

  /** `begin(listener)` adds the sequence, and returns what `Host.add` does; `cancel(id)` ends it. */
  constructor(begin, cancel, { signal, onPrompt }) {
    this.result = new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
    });
    // Who only iterates is told there.
    this.result.catch(() => {});
    this.#run(begin, cancel, signal, onPrompt);
  }

  /** Ends the text where it is: the iteration and `result` end as usual, with the reason `cancelled`. */
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
      // Who leaves the loop wants no more.
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

/** A conversation by the template of the model's file. */
export class Chat {
  /** What was said: {role, content}. It may be changed between two turns. */
  messages;
  /** Positions of the context that the last turn took. */
  used = 0;
  #model;

  constructor(model, { system, messages = [] } = {}) {
    this.#model = model;
    this.messages = [...(system === undefined ? [] : [{ role: "system", content: system }]), ...messages];
  }

  /**
   * Says `text` to the model. The answer is kept, as far as it came, unless it is empty or fails. If the
   * context is full, the oldest turns are forgotten.
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

  /** Forgets all but the system message. */
  clear() {
    this.messages = this.messages.filter(({ role }, at) => at === 0 && role === "system");
    this.used = 0;
  }
}

/** A loaded model. */
export class Model {
  /** The file's name for it, or null. */
  name;
  /** The file's architecture. */
  architecture;
  /** Positions of the context. */
  nCtx;
  /** Those that the model was trained with. */
  nCtxTrain;
  /** Whether the file has a chat template. */
  chats;
  /** What it runs on. */
  device;
  /** Bytes that it takes of the device. */
  plan;
  /** How text is sampled if nothing else is asked for. */
  sampling;
  /** What a user should know of the file and the options, a sentence each. */
  notices;
  #host;

  constructor(host) {
    this.#host = host;
    const { name, architecture, nCtx, nCtxTrain, chats, device, plan, sampling, notices } = host.about;
    Object.assign(this, { name, architecture, nCtx, nCtxTrain, chats, device, plan, sampling, notices });
  }

  /** Goes on behind a text or tokens, or answers a list of messages {role, content}. */
  generate(input, options) {
    const { engine, ...own } = splitOptions(options);
    const isTurns = Array.isArray(input) && typeof input[0] === "object";
    // Of a typed array, JSON would make an object.
    const prompt = ArrayBuffer.isView(input) ? [...input] : input;
    const asked = isTurns ? { messages: input } : { prompt };
    const begin = (listener) => this.#host.add({ ...engine, ...asked }, listener);
    return new Generation(begin, (id) => this.#host.cancel(id), own);
  }

  /** A conversation: {system, messages}. */
  chat(options) {
    if (!this.chats)
      throw new SternaError("the file has no chat template; load it with chatTemplate, or generate");
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
