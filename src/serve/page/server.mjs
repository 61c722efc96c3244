// State of the server: if it can be reached, which models it has, and if it requires a key. Kept up to date.

import { ServerError, models, props } from "./api.mjs";
import { keep, recall } from "./preferences.mjs";

/** Assumed properties of a server without `/props`. */
const UNKNOWN = { name: "model", chats: true, nCtx: null, params: {}, build: "" };
const PAUSE_MS = 1500;

/**
 * `state` is connecting, ready, loading (the model), failed (the model could not be loaded), unreachable, or
 * locked (the server requires a key).
 */
export class Server {
  state = "connecting";
  /** The server's error message, if the state is failed. */
  failure = "";
  /** Properties of the model, from `api.props`. */
  props = UNKNOWN;
  /** Models of the server, from `api.models`. */
  models = [];
  /** The selected model, from now or an earlier visit; null for the server's default. */
  model = recall("model");
  #changed;
  #attempt = 0;

  constructor(changed) {
    this.#changed = changed;
  }

  /** Retries until there is an answer. A later call ends an earlier one's attempts. */
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

  /** Updates the state after a failed request. */
  failed(error) {
    if (error.status === 401 || error.status === 403) {
      this.state = "locked";
      this.#changed();
    } else if (error.status === 0 || error.status === 503) {
      this.connect();
    }
  }

  /** Selects another model, also for later visits. */
  pick(model) {
    this.model = model;
    keep("model", model);
    return this.connect();
  }

  /** Asks for the server's state. The results are only stored while the attempt `isCurrent`. */
  async #ask(isCurrent) {
    try {
      const list = await this.#list();
      if (!isCurrent()) return null;
      this.models = list;
      const known = list.find(({ id }) => id === this.model);
      // This is another server, or the file is gone.
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
        // Another attempt would load it again. The user can select another model.
        this.failure = error.message;
        return "failed";
      }
      if ([0, 429, 500, 502, 504].includes(error.status)) return "unreachable";
      // The server responds but has no `/props`: another server with OpenAI's endpoints.
      this.props = UNKNOWN;
      return "ready";
    }
  }

  /** The list of models; empty if the server has no list or cannot answer now. */
  async #list() {
    try {
      return await models();
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      return [];
    }
  }
}
