// Whether there is a server, what it runs, and what it asks for: one state, kept up to date.

import { ServerError, models, props } from "./api.mjs";

/** What is assumed of a server that has no `/props`. */
const UNKNOWN = { name: "model", chats: true, nCtx: null, params: {}, build: "" };
const PAUSE_MS = 1500;

/** `state` is connecting, ready, loading (the model), unreachable, or locked (it wants a key). */
export class Server {
  state = "connecting";
  /** Of the model, as `api.props` gives them. */
  props = UNKNOWN;
  models = [];
  /** The model that was picked, null for the server's own choice. */
  model = null;
  #changed;
  #attempt = 0;

  constructor(changed) {
    this.#changed = changed;
  }

  /** Asks until there is an answer. A later call ends the attempts of an earlier one. */
  async connect() {
    this.#attempt += 1;
    const attempt = this.#attempt;
    for (;;) {
      const state = await this.#ask();
      if (attempt !== this.#attempt) return;
      this.state = state;
      this.#changed();
      if (state === "ready" || state === "locked") return;
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
      if (attempt !== this.#attempt) return;
    }
  }

  /** Takes note of what went wrong in a request. */
  failed(error) {
    if (error.status === 401 || error.status === 403) {
      this.state = "locked";
      this.#changed();
    } else if (error.status === 0 || error.status === 503) {
      this.connect();
    }
  }

  /** Runs another model from now on. */
  pick(model) {
    this.model = model;
    return this.connect();
  }

  async #ask() {
    try {
      this.props = await props(this.model);
      this.models = await models().catch(() => []);
      return "ready";
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      if (error.status === 401 || error.status === 403) return "locked";
      if (error.status === 503) return "loading";
      if ([0, 429, 500, 502, 504].includes(error.status)) return "unreachable";
      // It answers, and has no `/props`: other servers with OpenAI's endpoints.
      this.props = UNKNOWN;
      return "ready";
    }
  }
}
