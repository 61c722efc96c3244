// The turns of the visible conversation, and its scroll position.

import { pathOf } from "./conversation.mjs";
import { TextView } from "./text-view.mjs";
import { TurnView } from "./turn-view.mjs";

const $ = (id) => document.getElementById(id);

/** Distance from the end in pixels within which the view follows generated text. */
const AT_END = 64;
/** Maximum share of time for a frame: text that is slow to lay out is updated less often. */
const RENDER_SHARE = 0.25;

export class Thread {
  #scroll = $("scroll");
  #turns = $("turns");
  #actions;
  #conversation = null;
  /** The only view of a text, or the views of a chat by turn id. */
  #text = null;
  #views = new Map();
  #run = null;
  #waits = false;
  #rested = 0;
  /** State at the last check: true if the end was visible, and the height in pixels. */
  #ended = true;
  #height = 0;

  constructor(actions) {
    this.#actions = actions;
    this.#scroll.addEventListener("scroll", () => this.#place(), { passive: true });
    $("to-end").addEventListener("click", () => this.toEnd());
    new ResizeObserver(() => this.#place()).observe(this.#scroll);
  }

  /** Shows another conversation, scrolled to its end. */
  open(conversation) {
    this.#conversation = conversation;
    this.#views.clear();
    this.#text = conversation.mode === "text" ? new TextView(conversation, this.#actions) : null;
    this.#turns.replaceChildren();
    this.#turns.className = conversation.mode;
    requestAnimationFrame(() => this.toEnd());
  }

  /** Updates after turns were added or removed, or an answer has started or ended. */
  update(run) {
    const follows = this.#atEnd() || this.#covered();
    this.#run = run;
    const path = pathOf(this.#conversation);
    if (this.#text !== null) {
      this.#text.update(path, path.at(-1) === run?.turn ? run : null);
      this.#turns.replaceChildren(...(path.length > 0 ? [this.#text.node] : []));
    } else {
      this.#chat(path, run);
    }
    if (follows) this.toEnd();
    this.#place();
  }

  #chat(path, run) {
    const views = path.map((turn) => {
      if (!this.#views.has(turn.id)) {
        this.#views.set(turn.id, new TurnView(this.#conversation, turn, this.#actions));
      }
      const view = this.#views.get(turn.id);
      view.update(run?.turn === turn ? run : null);
      return view.node;
    });
    // Nodes that are not moved keep focus and selection.
    const stays = views.findIndex((node, at) => this.#turns.children[at] !== node);
    const from = stays < 0 ? views.length : stays;
    while (this.#turns.children.length > from) this.#turns.lastChild.remove();
    this.#turns.append(...views.slice(from));
  }

  /** An answer has grown. It is rendered with the next frame, or later if frames have become slow. */
  grown(run) {
    this.#run = run;
    if (this.#waits) return;
    this.#waits = true;
    const wait = Math.max(0, this.#rested - performance.now());
    setTimeout(() => requestAnimationFrame(() => this.#frame()), wait);
  }

  #frame() {
    this.#waits = false;
    const run = this.#run;
    if (run === null || run.conversation !== this.#conversation) return;
    const began = performance.now();
    const follows = this.#atEnd() || this.#covered();
    const path = this.#text === null ? [] : pathOf(this.#conversation);
    if (path.at(-1) === run.turn) this.#text.update(path, run);
    else this.#views.get(run.turn.id)?.update(run);
    this.#actions.shown(run);
    if (follows) this.toEnd();
    this.#place();
    const now = performance.now();
    this.#rested = now + (now - began) * (1 / RENDER_SHARE - 1);
  }

  toEnd() {
    this.#scroll.scrollTop = this.#scroll.scrollHeight;
    this.#ended = true;
    this.#height = this.#scroll.clientHeight;
  }

  /** Keeps the focus on a fork's arrows after another version has replaced `turn`. */
  focusVersions(turn, step) {
    const fork = turn.parent ?? "";
    const arrows = this.#turns.querySelectorAll(`.versions[data-fork="${fork}"] button`);
    const [next, other] = step < 0 ? arrows : [...arrows].reverse();
    (next?.disabled ? other : next)?.focus();
  }

  /** Opens the user's last turn for editing. */
  editLast() {
    const mine = this.#turns.querySelectorAll(".turn.user");
    [...(mine[mine.length - 1]?.querySelectorAll(".tools button") ?? [])]
      .find((button) => button.textContent === "Edit")
      ?.click();
  }

  #atEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroll;
    return scrollHeight - scrollTop - clientHeight < AT_END;
  }

  /** True if the end was visible before a phone's keyboard or a server message covered it. */
  #covered() {
    return this.#ended && this.#scroll.clientHeight !== this.#height;
  }

  #place() {
    if (this.#covered()) this.toEnd();
    this.#ended = this.#atEnd();
    this.#height = this.#scroll.clientHeight;
    $("to-end").hidden = this.#ended;
  }
}
