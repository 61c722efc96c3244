// The server, as this page needs it: what model it has, and text from it. Addresses are relative to the page,
// so that it also works behind a path.

import { eventsOf } from "./sse.mjs";

const KEY = "sterna.key";

/**
 * An answer that is none. `status` is 0 if the server could not be reached or the connection broke. `details`
 * may have retryAfter (seconds), and if a prompt is too long, needed and room (tokens).
 */
export class ServerError extends Error {
  constructor(status, message, details = {}) {
    super(message);
    this.status = status;
    this.details = details;
  }
}

let held = "";

/** The key that the server asks for, if it does. It ends with the tab. */
export const key = {
  get() {
    try {
      return sessionStorage.getItem(KEY) ?? held;
    } catch {
      // The browser keeps nothing for this page; then the key ends with it.
      return held;
    }
  },
  set(value) {
    held = value;
    try {
      sessionStorage.setItem(KEY, value);
    } catch {
      // As above.
    }
  },
};

/**
 * What `/props` says of a model, reduced to what is shown. `model` is null for the one that answers
 * unasked.
 */
export async function props(model) {
  const query = model === null ? "" : `?model=${encodeURIComponent(model)}`;
  const answer = await (await request(`props${query}`)).json();
  const defaults = answer.default_generation_settings ?? {};
  const template = typeof answer.chat_template === "string" ? answer.chat_template : "";
  return {
    name: answer.model_alias || baseName(answer.model_path) || "model",
    // A model without a template was not made for turns: it continues text.
    chats: template.trim() !== "",
    // Other servers say nothing of that.
    writes: answer.capabilities?.includes("completion") ?? true,
    nCtx: Number.isFinite(defaults.n_ctx) ? defaults.n_ctx : null,
    params: defaults.params ?? {},
    build: answer.build_info ?? "",
  };
}

/** The models that the server can run: {id, loaded}. */
export async function models() {
  const answer = await (await request("v1/models")).json();
  // Other servers say nothing of a status.
  const isLoaded = (status) => (status?.value ?? "loaded") === "loaded";
  return (answer.data ?? []).map(({ id, status }) => ({ id, loaded: isLoaded(status) }));
}

/**
 * The answer to `messages`, piece by piece: {text}, {reasoning}, {progress: {done, total}}, {timings}, and
 * {finish: stop | length | …} at the end. Ends without `finish` if the connection does.
 */
export async function* chat(messages, settings, signal) {
  const body = {
    messages,
    ...settings,
    stream: true,
    stream_options: { include_usage: true },
    ...REPORTS,
    // A last message of the assistant is continued. llama-server's kin do so unasked, others by these words.
    ...(messages.at(-1)?.role === "assistant" && {
      continue_final_message: true,
      add_generation_prompt: false,
    }),
  };
  for await (const answer of stream("v1/chat/completions", body, signal)) {
    const [choice] = answer.choices ?? [];
    const reasoning = choice?.delta?.reasoning_content;
    if (reasoning) yield { reasoning };
    if (choice?.delta?.content) yield { text: choice.delta.content };
    if (choice?.finish_reason) yield { finish: choice.finish_reason };
    yield* reports(answer);
  }
}

/** What follows `prompt`, as `chat` gives it. */
export async function* completion(prompt, settings, signal) {
  const body = { prompt, ...settings, stream: true, ...REPORTS };
  for await (const answer of stream("completion", body, signal)) {
    if (answer.content) yield { text: answer.content };
    yield* reports(answer);
    if (answer.stop === true) {
      yield { finish: answer.stop_type === "limit" ? "length" : "stop" };
      return;
    }
  }
}

const REPORTS = { timings_per_token: true, return_progress: true, cache_prompt: true };

function* reports({ timings, prompt_progress: progress }) {
  if (timings) yield { timings };
  if (progress) yield { progress: { done: progress.processed, total: progress.total } };
}

/** The JSON objects of an event stream. */
async function* stream(path, body, signal) {
  const response = await request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  try {
    for await (const { data } of eventsOf(response.body)) {
      if (data === "[DONE]") return;
      const answer = parsed(data);
      if (answer.error) throw new ServerError(500, messageOf(answer) ?? "The server reported an error.");
      yield answer;
    }
  } catch (error) {
    if (error instanceof ServerError || signal.aborted) throw error;
    throw new ServerError(0, "The connection to the server broke.");
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ServerError(500, `The server sent an event that is not JSON: ${text.slice(0, 80)}`);
  }
}

/** A response with a status of success, or a `ServerError`. */
async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get() !== "") headers.Authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ServerError(0, "The server cannot be reached.");
  }
  if (response.ok) return response;
  // A proxy's page is no JSON, and not the server's words.
  const answer = (await response.json().catch(() => null)) ?? {};
  const message = messageOf(answer) ?? `The server answered ${response.status}.`;
  throw new ServerError(response.status, message, {
    retryAfter: Number.parseFloat(response.headers.get("Retry-After") ?? ""),
    needed: answer.error?.n_prompt_tokens,
    room: answer.error?.n_ctx,
  });
}

const messageOf = ({ error }) => (typeof error === "string" ? error : (error?.message ?? null));
const baseName = (path) =>
  path
    ?.split(/[\\/]/)
    .at(-1)
    .replace(/\.gguf$/, "");
