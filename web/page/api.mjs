// Replaces the server's `api.mjs`: the same functions, implemented with the engine in this browser.

import * as library from "./library.mjs";

/** As on the server's page: `status` is the reason why a request failed. */
export class ServerError extends Error {
  constructor(status, message, details = {}) {
    super(message);
    this.status = status;
    this.details = details;
  }
}

/** No key is needed. */
export const key = { get: () => "", set: () => {} };

/** Names of parameters, the server's and the package's. */
const NAMES = {
  temperature: "temperature",
  top_k: "topK",
  top_p: "topP",
  min_p: "minP",
  typical_p: "typicalP",
  repeat_penalty: "repeatPenalty",
  repeat_last_n: "repeatLastN",
  presence_penalty: "presencePenalty",
  frequency_penalty: "frequencyPenalty",
  n_predict: "maxTokens",
  max_tokens: "maxTokens",
  seed: "seed",
  stop: "stop",
};
const DEFAULTS = { typical_p: 1, presence_penalty: 0, frequency_penalty: 0 };

/** Properties of a model. Loads it first. */
export async function props(id) {
  const model = await opened(id);
  const params = { ...DEFAULTS };
  for (const [theirs, ours] of Object.entries(NAMES)) {
    if (Number.isFinite(model.sampling[ours])) params[theirs] = model.sampling[ours];
  }
  const { backend, description } = model.device;
  return {
    name: model.name ?? "model",
    chats: model.chats,
    blind: "Models in this page see no images: only those of `sterna serve` do, with an mmproj file.",
    nCtx: model.nCtx,
    params,
    build: `${backend === "webgpu" ? "WebGPU" : "CPU"}: ${description}`,
  };
}

/** The models that this page can run: {id, loaded}. */
export async function models() {
  return (await library.all()).map(({ id }) => ({ id, loaded: library.isLoaded(id) }));
}

/** Streams the answer to `messages`: {text}, {progress: {done, total}}, {timings}, and {finish}. */
export const chat = (messages, settings, signal) => answer(messages, settings, signal);

/** Streams the text that follows `prompt`, in the format of `chat`. */
export const completion = (prompt, settings, signal) => answer(prompt, settings, signal);

async function* answer(input, { model: id = null, ...settings }, signal) {
  const model = await opened(id);
  const known = Object.entries(settings).filter(([name]) => name in NAMES);
  const options = Object.fromEntries(known.map(([name, value]) => [NAMES[name], value]));
  if (options.maxTokens < 0) delete options.maxTokens;
  const begun = performance.now();
  const pieces = [];
  let wake = null;
  const put = (piece) => {
    pieces.push(piece);
    wake?.();
  };
  const said = model.generate(input, { ...options, onPrompt: (progress) => put({ progress }) });
  const stop = () => said.stop();
  signal.addEventListener("abort", stop, { once: true });
  const read = follow(said, begun, put);
  try {
    for (;;) {
      while (pieces.length > 0) {
        const piece = pieces.shift();
        if (piece.error !== undefined) throw await failed(piece.error);
        yield piece;
        if (piece.finish !== undefined) return;
      }
      await new Promise((resolve) => {
        wake = resolve;
      });
    }
  } finally {
    signal.removeEventListener("abort", stop);
    said.stop();
    await read;
  }
}

/** Passes on the pieces of a text, with the speed so far, and its end. */
async function follow(said, begun, put) {
  try {
    let first = null;
    let n = 0;
    for await (const text of said) {
      first ??= performance.now();
      n += 1;
      put({ text });
      const seconds = (performance.now() - first) / 1000;
      if (n > 1) put({ timings: { predicted_n: n, predicted_per_second: (n - 1) / seconds } });
    }
    const { stats, stopReason } = await said.result;
    put({
      timings: {
        cache_n: stats.cachedTokens,
        prompt_n: stats.promptTokens - stats.cachedTokens,
        prompt_ms: first === null ? stats.promptSeconds * 1000 : first - begun,
        prompt_per_second: stats.promptTokensPerSecond,
        predicted_n: stats.tokens,
        predicted_per_second: stats.tokensPerSecond,
      },
    });
    put({ finish: ["limit", "context"].includes(stopReason) ? "length" : "stop" });
  } catch (error) {
    put({ error });
  }
}

async function opened(id) {
  try {
    return await library.open(id);
  } catch (error) {
    // A model that failed to load is not retried automatically.
    throw new ServerError(500, error.message);
  }
}

/**
 * Handles an error of the engine. If the device or the module is lost, the next question loads the model
 * again.
 */
async function failed(error) {
  const message = error.message;
  if (error.name === "SternaCrash" || /device|lost|backend/i.test(message)) await library.forget();
  return new ServerError(500, message);
}
