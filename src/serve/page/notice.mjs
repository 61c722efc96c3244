// The reason why a turn ended early, and the actions offered.

import { element } from "./dom.mjs";
import { icon } from "./icons.mjs";

const WAYS = { more: "Continue", again: "Try again", fresh: "New conversation" };

/** A notice below a turn. `act(way)` is called for a pressed button, with one of the `ways` of `ending`. */
export class Notice {
  node = element("div", { class: "notice", hidden: true });
  #text = element("p", { class: "note" });
  #icon = icon("warn");
  #ways = element("div", { class: "ways" });
  #act;
  #shown = "";

  constructor(act) {
    this.#act = act;
    this.node.append(this.#icon, this.#text, this.#ways);
  }

  /** Shows an ending from text.mjs; null for a turn without one. */
  show(ending) {
    this.node.hidden = ending === null;
    this.#text.textContent = ending?.text ?? "";
    this.node.dataset.tone = ending?.tone ?? "";
    this.node.classList.toggle("trouble", ending?.tone === "trouble");
    // Recreated buttons would lose the focus.
    const ways = ending?.ways ?? [];
    if (this.#shown !== ways.join()) this.#ways.replaceChildren(...ways.map((way) => this.#button(way)));
    this.#shown = ways.join();
  }

  #button(way) {
    const properties = { type: "button", class: "outline", onclick: () => this.#act(way) };
    return element("button", properties, WAYS[way]);
  }
}
