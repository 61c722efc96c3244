// One turn of a chat.

import { copyButton } from "./clipboard.mjs";
import { versionOf } from "./conversation.mjs";
import { element } from "./dom.mjs";
import { edit } from "./editor.mjs";
import { icon } from "./icons.mjs";
import { Notice } from "./notice.mjs";
import { GrowingText } from "./render.mjs";
import { ending, figures, speed } from "./text.mjs";

/**
 * Shows a turn. `actions` are the page's: again, more, fresh, edit, version, branch, each with the turn.
 * `update` is called when the turn or its surroundings have changed.
 */
export class TurnView {
  node;
  #turn;
  #actions;
  #text = null;
  #shown = null;
  #reasoning = null;
  #body = element("div", { class: "markdown" });
  #thinking = element("details", { class: "reasoning", hidden: true });
  #notice = new Notice((way) => this.#actions[way](this.#turn));
  #tools = element("div", { class: "tools" });

  constructor(conversation, turn, actions) {
    this.#turn = turn;
    this.#actions = actions;
    const name = turn.role === "user" ? "You" : "Model";
    const heading = element("h2", { class: "unseen" }, name);
    this.node = element(
      "article",
      { class: `turn ${turn.role}`, "aria-label": name },
      heading,
      turn.role === "assistant" && this.#thinking,
      turn.images !== undefined && pictures(turn.images),
      this.#body,
      turn.role === "assistant" && this.#notice.node,
      this.#tools,
    );
    this.conversation = conversation;
  }

  /** `run` is the one that writes this turn, or null. */
  update(run) {
    this.node.classList.toggle("writing", run !== null);
    this.node.setAttribute("aria-busy", String(run !== null));
    this.#showReasoning(run);
    this.#showText(run);
    this.#notice.show(ending(this.#turn, run !== null));
    // Recreated buttons would lose the focus, so they stay while text arrives.
    const state = JSON.stringify([
      run === null,
      this.#turn.finish,
      versionOf(this.conversation, this.#turn),
    ]);
    if (this.#shown !== state) this.#tools.replaceChildren(...this.#buttons(run !== null));
    this.#shown = state;
  }

  #showText(run) {
    const { text, role } = this.#turn;
    if (role === "user") {
      this.#body.className = "plain";
      if (this.#body.textContent !== text) this.#body.textContent = text;
      return;
    }
    if (text === "" && run !== null) {
      this.#text = null;
      this.#body.replaceChildren(element("p", { class: "waiting" }, waiting(run)));
      return;
    }
    this.#text ??= new GrowingText(this.#body);
    this.#text.show(text);
  }

  #showReasoning(run) {
    const { reasoning, reasoningMs, text } = this.#turn;
    this.#thinking.hidden = !reasoning;
    if (!reasoning) return;
    if (this.#reasoning === null) {
      const body = element("div", { class: "markdown" });
      this.#thinking.append(element("summary"), body);
      this.#reasoning = new GrowingText(body);
    }
    const thinks = run !== null && text === "";
    const seconds = Math.max(1, Math.round((reasoningMs ?? 0) / 1000));
    this.#thinking.firstChild.textContent = thinks ? "Thinking" : `Thought for ${seconds} s`;
    this.#reasoning.show(reasoning);
  }

  #buttons(running) {
    const turn = this.#turn;
    const actions = this.#actions;
    const { count } = versionOf(this.conversation, turn);
    const versions = count > 1 && versionSwitch(this.conversation, turn, actions.version);
    if (running) return [versions].filter(Boolean);
    const button = (text, action) => {
      return element("button", { type: "button", class: "quiet", onclick: () => action(turn) }, text);
    };
    const model = turn.role === "assistant";
    // If the turn ended early, its actions are next to the reason.
    const ways = ending(turn, false)?.ways ?? [];
    const rate = speed(turn.timings);
    return [
      versions,
      turn.finish === "edited" && turn.text !== "" && button("Continue", actions.more),
      model && !ways.includes("again") && button("Regenerate", actions.again),
      turn.text !== "" && copyButton(() => turn.text),
      turn.text !== "" && button("Edit", () => this.#edit(turn)),
      turn.text !== "" && button("Branch", actions.branch),
      rate !== "" && element("span", { class: "figure", title: figures(turn.timings) }, rate),
    ].filter(Boolean);
  }

  #edit(turn) {
    const user = turn.role === "user";
    const keep = (text) => {
      if (user ? text.trim() !== "" : text !== turn.text) this.#actions.edit(turn, text);
    };
    edit(this.node, this.#tools, {
      text: turn.text,
      label: "Text of this turn",
      submit: user ? "Send" : "Keep",
      keep,
      closed: () => this.#tools.querySelector("button")?.focus(),
    });
  }
}

/** The images of a turn. */
function pictures(images) {
  const picture = (src, at) => element("img", { src, alt: `Image ${at + 1}` });
  return element("div", { class: "pictures" }, images.map(picture));
}

/** Text that is shown until the first token. */
function waiting(run) {
  const { progress } = run;
  if (progress === null || !(progress.total > 0)) return "Waiting";
  return `Reading the prompt, ${Math.floor((100 * progress.done) / progress.total)} %`;
}

/** `‹ 2/3 ›`: calls `go(turn, step)` for the previous or next version. */
export function versionSwitch(conversation, turn, go) {
  const { number, count } = versionOf(conversation, turn);
  const button = (label, name, step, disabled) => {
    const properties = { type: "button", class: "bare", "aria-label": label, disabled };
    return element("button", { ...properties, onclick: () => go(turn, step) }, icon(name));
  };
  return element(
    "span",
    {
      class: "versions",
      role: "group",
      "aria-label": `Version ${number} of ${count}`,
      "data-fork": turn.parent ?? "",
    },
    button("Previous version", "left", -1, number === 1),
    element("span", { class: "figure" }, `${number}/${count}`),
    button("Next version", "right", 1, number === count),
  );
}
