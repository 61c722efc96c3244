// Requests to the server: which model it runs, and generated text. URLs are relative to the page, so that it
// also works below a path prefix.

import { eventsOf } from "./sse.mjs";

const KEY = "sterna.key";

/**
 * A failed request. `status` is 0 if the server could not be reached or the connection failed. `details` may
 * contain retryAfter (seconds) and, if a prompt is too long, needed and room (tokens).
 */
export class ServerError extends Error {
  constructor(status, message, details = {}) {
    super(message);
    this.status = status;
    this.details = details;
  }
}

let held = "";

/** The API key, if the server requires one. It is forgotten when the tab is closed. */
export const key = {
  get() {
    try {
      return sessionStorage.getItem(KEY) ?? held;
    } catch {
      // Storage is disabled for this page; the key is lost when the page is closed.
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

/** A model's `/props`, reduced to what is shown. `model` is null for the server's default model. */
export async function props(model) {
  const query = model === null ? "" : `?model=${encodeURIComponent(model)}`;
  const answer = await (await request(`props${query}`)).json();
  const defaults = answer.default_generation_settings ?? {};
  const template = typeof answer.chat_template === "string" ? answer.chat_template : "";
  return {
    name: answer.model_alias || baseName(answer.model_path) || "model",
    // A model without a template was not trained for chat: it continues text.
    chats: template.trim() !== "",
    // Other servers do not have this field.
    writes: answer.capabilities?.includes("completion") ?? true,
    sees: answer.modalities?.vision === true,
    nCtx: Number.isFinite(defaults.n_ctx) ? defaults.n_ctx : null,
    params: defaults.params ?? {},
    build: answer.build_info ?? "",
  };
}

/** The models that the server can run: {id, loaded}. */
export async function models() {
  const answer = await (await request("v1/models")).json();
  // Other servers do not have this field.
  const isLoaded = (status) => (status?.value ?? "loaded") === "loaded";
  return (answer.data ?? []).map(({ id, status }) => ({ id, loaded: isLoaded(status) }));
}

/**
 * Streams the answer to `messages`: {text}, {reasoning}, {progress: {done, total}}, {timings}, and {finish:
 * stop | length | …} at the end. Without `finish`, the connection was closed early.
 */
export async function* chat(messages, settings, signal) {
  const body = {
    messages,
    ...settings,
    stream: true,
    stream_options: { include_usage: true },
    ...REPORTS,
    // Continues a final assistant message. llama-server and its relatives do so by default, others need these
    // fields.
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

/** Streams the text that follows `prompt`, in the format of `chat`. */
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
    throw new ServerError(0, "The connection to the server was lost.");
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ServerError(500, `The server sent an event that is not JSON: ${text.slice(0, 80)}`);
  }
}

/** A successful response; throws a `ServerError` otherwise. */
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
  // A proxy's error page is not JSON, and not the server's message.
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
