// The field at the foot of the page, and the button that sends or stops.

import { growing } from "./editor.mjs";
import { icon } from "./icons.mjs";
import { contextUsed, count, speed } from "./text.mjs";

const $ = (id) => document.getElementById(id);

/** `send(text)` and `stop()` are the page's; `recall()` edits the last turn of the reader. */
export class Composer {
  #form = $("composer");
  #field = $("prompt");
  #button = $("send");
  #size = growing(this.#field);
  #state = { mode: "chat", running: false, begun: false, off: "" };

  constructor({ send, stop, recall }) {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#state.running) return stop();
      if (this.#state.off !== "") return undefined;
      if (this.#lacks() !== "") return this.#field.focus();
      const text = this.#field.value;
      this.set("");
      return send(text);
    });
    this.#field.addEventListener("input", () => this.#showButton());
    this.#field.addEventListener("keydown", (event) => {
      const sends = event.key === "Enter" && !event.shiftKey && !event.isComposing;
      // On a keyboard of glass the key makes a new line; there the button sends.
      if (sends && !matchMedia("(pointer: coarse)").matches) {
        event.preventDefault();
        if (!this.#state.running) this.#form.requestSubmit();
      }
      if (event.key === "ArrowUp" && this.#field.value === "") recall();
    });
  }

  focus() {
    // It would raise a phone's keyboard over what there is to read.
    if (!matchMedia("(pointer: coarse)").matches) this.#field.focus();
  }

  get text() {
    return this.#field.value;
  }

  set(text) {
    this.#field.value = text;
    this.#size();
    this.#showButton();
  }

  /**
   * Shows what pressing the button does. `off` says why nothing can be sent now, or is empty; it is not shown
   * to a reader who `waits` for a moment only.
   */
  update({ mode, running, begun, off, waits }) {
    this.#state = { mode, running, begun, off };
    const text = mode === "text";
    document.body.dataset.mode = mode;
    $("keys").textContent = `Enter ${text ? "continues" : "sends"}, Shift Enter makes a new line`;
    $("keys").hidden = off !== "" && !waits;
    $("why").classList.toggle("unseen", off === "" || waits);
    const add = begun ? "Add something, or just continue" : "Begin a text";
    this.#field.placeholder = text ? add : "Write a message";
    this.#field.setAttribute("aria-label", text ? "Text to add" : "Message");
    this.#showButton();
  }

  /** What must be written before there is something to send, or an empty string. */
  #lacks() {
    const { mode, begun } = this.#state;
    if (mode === "chat") return this.#field.value.trim() === "" ? "Write a message first" : "";
    return this.#field.value === "" && !begun ? "Write a beginning first" : "";
  }

  #showButton() {
    const { mode, running, begun, off } = this.#state;
    const idle = mode !== "text" ? "Send" : begun ? "Continue the text" : "Continue from here";
    const label = running ? "Stop" : idle;
    if (this.#button.getAttribute("aria-label") !== label) {
      this.#button.setAttribute("aria-label", label);
      this.#button.replaceChildren(icon(running ? "stop" : "up"));
    }
    const why = running ? "" : off || this.#lacks();
    this.#button.disabled = !running && off !== "";
    // Not `disabled`: the button keeps the focus while one begins to write.
    this.#button.setAttribute("aria-disabled", String(why !== ""));
    this.#button.title = running ? "Stop (Esc)" : why || label;
    $("why").textContent = why;
  }

  /** The figures of the newest answer: how full the context is, and how fast text comes. */
  figures(timings, nCtx, running) {
    const used = contextUsed(timings);
    const known = used !== null && nCtx !== null;
    $("context").hidden = !known;
    if (known) {
      $("context-bar").max = nCtx;
      $("context-bar").value = Math.min(used, nCtx);
      $("context-text").textContent = `${count(Math.min(used, nCtx))} of ${count(nCtx)} tokens`;
    }
    // When it is done, the figure stands below the answer.
    $("speed").textContent = running ? speed(timings) : "";
  }
}
