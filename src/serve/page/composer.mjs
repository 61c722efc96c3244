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
  #running = false;
  #mode = "chat";

  constructor({ send, stop, recall }) {
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#running) return stop();
      if (this.#button.disabled) return undefined;
      const text = this.#field.value;
      if (text.trim() === "" && this.#mode === "chat") return undefined;
      this.set("");
      return send(text);
    });
    this.#field.addEventListener("keydown", (event) => {
      const sends = event.key === "Enter" && !event.shiftKey && !event.isComposing;
      // On a keyboard of glass the key makes a new line; there the button sends.
      if (sends && !matchMedia("(pointer: coarse)").matches) {
        event.preventDefault();
        if (!this.#running) this.#form.requestSubmit();
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
  }

  /** Shows what pressing the button does, and whether it can be pressed. */
  update({ mode, running, begun, ready }) {
    this.#running = running;
    this.#mode = mode;
    const text = mode === "text";
    const idle = text ? (begun ? "Continue the text" : "Continue from here") : "Send";
    const label = running ? "Stop" : idle;
    if (this.#button.getAttribute("aria-label") !== label) {
      this.#button.setAttribute("aria-label", label);
      this.#button.title = running ? "Stop (Esc)" : label;
      this.#button.replaceChildren(icon(running ? "stop" : "up"));
    }
    this.#button.disabled = !ready && !running;
    document.body.dataset.mode = mode;
    $("keys").textContent = `Enter ${text ? "continues" : "sends"}, Shift Enter makes a new line`;
    const add = begun ? "Add something, or just continue" : "Begin a text";
    this.#field.placeholder = text ? add : "Write a message";
    this.#field.setAttribute("aria-label", text ? "Text to add" : "Message");
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
