// A text that a model continues: its passages in one flow, like a page of a book.

import { copyButton } from "./clipboard.mjs";
import { versionOf, wholeText } from "./conversation.mjs";
import { element } from "./dom.mjs";
import { edit } from "./editor.mjs";
import { Notice } from "./notice.mjs";
import { ending, figures, speed } from "./text.mjs";
import { versionSwitch } from "./turn-view.mjs";

/** Shows the passages of a path. `actions` are the page's: again, more, fresh, rewrite, version. */
export class TextView {
  node = element("article", { class: "story", "aria-label": "Text" });
  #flow = element("div", { class: "flow" });
  #notice = new Notice((way) => this.#actions[way](this.#last));
  #tools = element("div", { class: "tools" });
  #conversation;
  #actions;
  #passages = new Map();
  #last = null;
  #order = "";
  #shown = null;

  constructor(conversation, actions) {
    this.#conversation = conversation;
    this.#actions = actions;
    this.node.append(this.#flow, this.#notice.node, this.#tools);
  }

  update(path, run) {
    const order = path.map((turn) => `${turn.id} ${versionOf(this.#conversation, turn).count}`).join();
    if (order !== this.#order) this.#arrange(path);
    this.#order = order;
    for (const turn of path) {
      const node = this.#passages.get(turn.id);
      // Appending keeps the selection; a passage that is being generated only grows.
      const shown = node.textContent;
      if (turn.text.startsWith(shown)) node.append(turn.text.slice(shown.length));
      else node.textContent = turn.text;
    }
    this.node.classList.toggle("writing", run !== null);
    this.node.setAttribute("aria-busy", String(run !== null));
    this.#finish(path, run);
  }

  #arrange(path) {
    this.#passages.clear();
    this.#flow.replaceChildren();
    for (const turn of path) {
      const { count } = versionOf(this.#conversation, turn);
      if (count > 1) this.#flow.append(versionSwitch(this.#conversation, turn, this.#actions.version));
      const who = turn.role === "user" ? "written" : "continued";
      const passage = element("span", { class: `passage ${who}` });
      this.#passages.set(turn.id, passage);
      this.#flow.append(passage);
    }
  }

  #finish(path, run) {
    const last = path.at(-1);
    this.#last = last;
    this.#notice.show(last === undefined ? null : ended(last, run !== null));
    const state = `${run === null} ${last?.id} ${last?.finish}`;
    if (state !== this.#shown)
      this.#tools.replaceChildren(...(run === null && last ? this.#buttons(path) : []));
    this.#shown = state;
  }

  #buttons(path) {
    const last = path.at(-1);
    const button = (text, action) =>
      element("button", { type: "button", class: "quiet", onclick: action }, text);
    const rate = speed(last.timings);
    return [
      last.role === "assistant" &&
        !ended(last, false)?.ways.includes("again") &&
        button("Try again", () => this.#actions.again(last)),
      button("Edit text", () => this.#edit(path)),
      copyButton(() => wholeText(path)),
      rate !== "" && element("span", { class: "figure", title: figures(last.timings) }, rate),
    ].filter(Boolean);
  }

  #edit(path) {
    const keep = this.#actions.rewrite;
    edit(this.node, null, { text: wholeText(path), label: "The whole text", submit: "Keep", keep });
  }
}

/** The reason why a text does not continue, in the format of `ending`. */
function ended(turn, running) {
  if (running || turn.finish !== "stop") return ending(turn, running);
  return { tone: "plain", text: "The model ends the text here.", ways: [] };
}
