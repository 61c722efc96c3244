// The input field at the bottom of the page, and the button that sends or stops.

import { growing } from "./editor.mjs";
import { icon } from "./icons.mjs";
import { contextUsed, count, speed } from "./text.mjs";

const $ = (id) => document.getElementById(id);

/** `send(text)` and `stop()` belong to the page; `recall()` edits the user's last turn. */
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
      // On a touch screen the key inserts a new line; there only the button sends.
      if (sends && !matchMedia("(pointer: coarse)").matches) {
        event.preventDefault();
        if (!this.#state.running) this.#form.requestSubmit();
      }
      if (event.key === "ArrowUp" && this.#field.value === "") recall();
    });
  }

  focus() {
    // On a phone this would open the keyboard over the text.
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
   * Shows what the button does. `off` is the reason why nothing can be sent now, or empty. It is not shown if
   * the reader only `waits` briefly.
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

  /** Text that must be written before there is something to send, or an empty string. */
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
    // Not `disabled`, so that the button keeps the focus while the user starts to type.
    this.#button.setAttribute("aria-disabled", String(why !== ""));
    this.#button.title = running ? "Stop (Esc)" : why || label;
    $("why").textContent = why;
  }

  /** Figures of the newest answer: context usage, and tokens per second. */
  figures(timings, nCtx, running) {
    const used = contextUsed(timings);
    const known = used !== null && nCtx !== null;
    $("context").hidden = !known;
    if (known) {
      $("context-bar").max = nCtx;
      $("context-bar").value = Math.min(used, nCtx);
      $("context-text").textContent = `${count(Math.min(used, nCtx))} of ${count(nCtx)} tokens`;
    }
    // After the end the figure is shown below the answer.
    $("speed").textContent = running ? speed(timings) : "";
  }
}
