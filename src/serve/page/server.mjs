// Whether there is a server, what it runs, and what it asks for: one state, kept up to date.

import { ServerError, models, props } from "./api.mjs";
import { keep, recall } from "./preferences.mjs";

/** What is assumed of a server that has no `/props`. */
const UNKNOWN = { name: "model", chats: true, nCtx: null, params: {}, build: "" };
const PAUSE_MS = 1500;

/**
 * `state` is connecting, ready, loading (the model), failed (it could not be loaded), unreachable, or locked
 * (it wants a key).
 */
export class Server {
  state = "connecting";
  /** What went wrong, in the server's words, if the state is failed. */
  failure = "";
  /** Of the model, as `api.props` gives them. */
  props = UNKNOWN;
  /** Those that it can run, as `api.models` gives them. */
  models = [];
  /** The model that was picked, now or at an earlier visit; null for the server's own choice. */
  model = recall("model");
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
      const state = await this.#ask(() => attempt === this.#attempt);
      if (attempt !== this.#attempt) return;
      this.state = state;
      this.#changed();
      if (["ready", "locked", "failed"].includes(state)) return;
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

  /** Runs another model from now on, at later visits too. */
  pick(model) {
    this.model = model;
    keep("model", model);
    return this.connect();
  }

  /** The state that the server is in. What is learned of it is kept only while the question `isCurrent`. */
  async #ask(isCurrent) {
    try {
      const list = await this.#list();
      if (!isCurrent()) return null;
      this.models = list;
      const known = list.find(({ id }) => id === this.model);
      // Another server at this address, or a file that is gone.
      if (known === undefined) this.model = null;
      if (list.length > 1 && !(known ?? list[0]).loaded) {
        this.state = "loading";
        this.#changed();
      }
      const found = await props(this.model);
      const after = list.length > 1 ? await this.#list() : list;
      if (!isCurrent()) return null;
      [this.props, this.models] = [found, after];
      return "ready";
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      if (error.status === 401 || error.status === 403) return "locked";
      if (error.status === 503) return "loading";
      if (error.status === 500 && this.models.length > 1) {
        // Another attempt would load it again. The reader can pick another one.
        this.failure = error.message;
        return "failed";
      }
      if ([0, 429, 500, 502, 504].includes(error.status)) return "unreachable";
      // It answers, and has no `/props`: other servers with OpenAI's endpoints.
      this.props = UNKNOWN;
      return "ready";
    }
  }

  /** The models; none, of a server that has no list or cannot say now. */
  async #list() {
    try {
      return await models();
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      return [];
    }
  }
}
