// Generates one answer: sends the request, and writes the stream into the turn.

import { ServerError, chat, completion } from "./api.mjs";
import { messagesOf, pathTo, wholeText } from "./conversation.mjs";
import { fields } from "./settings.mjs";
import { contextUsed, count } from "./text.mjs";

/** The server's timings that are stored with a turn. */
const KEPT = [
  "cache_n",
  "prompt_n",
  "prompt_ms",
  "prompt_per_second",
  "predicted_n",
  "predicted_per_second",
];

/**
 * Writes into `turn`, the last of its path. Its `finish` is absent while it runs; then it is stop, length,
 * full (the context), stopped (by the user), dropped (the connection was closed), or problem, with the reason
 * in `problem`.
 */
export class Run {
  conversation;
  turn;
  /** Prompt progress, {done, total}, until the first token. */
  progress = null;
  /** The `ServerError` if it failed, or null. */
  error = null;
  /** Promise that is fulfilled when it has ended. */
  ended = null;
  /** Time of the first word of reasoning. */
  thinkingSince = null;
  #abort = new AbortController();
  #changed;

  constructor(conversation, turn, changed) {
    this.conversation = conversation;
    this.turn = turn;
    this.#changed = changed;
  }

  /** Stops it; the text so far is kept. */
  stop() {
    this.#abort.abort();
  }

  /** Runs to the end. Never throws because of the server. */
  go(server) {
    this.ended = this.#write(server);
    return this.ended;
  }

  async #write({ props, model }) {
    const { turn } = this;
    delete turn.finish;
    delete turn.problem;
    try {
      for await (const piece of this.#pieces(props, model)) {
        this.#take(piece);
        this.#changed();
      }
      turn.finish ??= "dropped";
      const full = props.nCtx !== null && contextUsed(turn.timings) >= props.nCtx;
      if (turn.finish === "length" && full) turn.finish = "full";
    } catch (error) {
      this.#fail(error);
    }
    this.progress = null;
  }

  #pieces(props, model) {
    const { conversation, turn } = this;
    const { mode } = conversation;
    const settings = { ...fields(mode, props.params), ...(model !== null && { model }) };
    const path = pathTo(conversation, turn);
    // An empty turn is generated from scratch; one with text is continued.
    if (turn.text === "") path.pop();
    return mode === "chat"
      ? chat(messagesOf(conversation, path), settings, this.#abort.signal)
      : completion(wholeText(path), settings, this.#abort.signal);
  }

  #take({ text, reasoning, progress, timings, finish }) {
    const { turn } = this;
    if (text !== undefined || reasoning !== undefined) this.progress = null;
    if (text !== undefined) turn.text += text;
    if (reasoning !== undefined) {
      turn.reasoning = (turn.reasoning ?? "") + reasoning;
      this.thinkingSince ??= performance.now();
      turn.reasoningMs = Math.round(performance.now() - this.thinkingSince);
    }
    if (progress !== undefined) this.progress = progress;
    if (timings !== undefined) {
      const numbers = KEPT.filter((name) => Number.isFinite(timings[name])).map((name) => [
        name,
        timings[name],
      ]);
      turn.timings = Object.fromEntries(numbers);
    }
    if (finish !== undefined) turn.finish = finish;
  }

  #fail(error) {
    if (this.#abort.signal.aborted) {
      this.turn.finish = "stopped";
    } else if (error instanceof ServerError) {
      this.error = error;
      this.turn.finish = error.status === 0 && this.turn.text !== "" ? "dropped" : "problem";
      this.turn.problem = explained(error);
    } else {
      throw error;
    }
  }
}

/** The server's message, with advice. */
function explained(error) {
  const { retryAfter, needed, room } = error.details;
  if (Number.isFinite(needed) && Number.isFinite(room)) {
    const lengths = `${count(needed)} tokens long, and the context of the model holds ${count(room)}`;
    return `This is ${lengths}. Shorten it, or begin a new conversation.`;
  }
  const wait = Number.isFinite(retryAfter) ? `in ${Math.ceil(retryAfter)} s` : "in a moment";
  if (error.status === 401 || error.status === 403) return "The server asks for a key.";
  if (error.status === 429) return `The server is busy. Try again ${wait}.`;
  if (error.status === 503) return `The server is not ready: ${error.message}`;
  return error.message;
}
