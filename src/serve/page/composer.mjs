// The input field at the bottom of the page, the images of the message, and the button that sends or stops.

import { element } from "./dom.mjs";
import { growing } from "./editor.mjs";
import { icon } from "./icons.mjs";
import { imagesAmong, read } from "./images.mjs";
import { contextUsed, count, speed } from "./text.mjs";

const $ = (id) => document.getElementById(id);

/**
 * `send(text, images)` and `stop()` belong to the page; `recall()` edits the user's last turn, and
 * `trouble(text)` shows why an image was not added.
 */
export class Composer {
  #form = $("composer");
  #field = $("prompt");
  #button = $("send");
  #size = growing(this.#field);
  #state = { mode: "chat", running: false, begun: false, off: "", sees: false, blind: "" };
  /** Data URLs. */
  #images = [];
  #trouble;

  constructor({ send, stop, recall, trouble }) {
    this.#trouble = trouble;
    this.#wireImages();
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.#state.running) return stop();
      if (this.#state.off !== "") return undefined;
      if (this.#lacks() !== "") return this.#field.focus();
      const text = this.#field.value;
      const images = this.#images;
      this.#show([]);
      this.set("");
      return send(text, images);
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

  #wireImages() {
    $("attach").append(icon("image"));
    $("attach").addEventListener("click", () => $("attach-file").click());
    $("attach-file").addEventListener("change", async ({ target }) => {
      await this.#add([...target.files]);
      target.value = "";
    });
    this.#field.addEventListener("paste", (event) => {
      const { clipboardData: data } = event;
      const files = imagesAmong(data?.files ?? []);
      // Word processors and spreadsheets add a picture of the text that is copied.
      const isText = data?.types.includes("text/html") && data.getData("text/plain").trim() !== "";
      if (files.length === 0 || isText) return;
      event.preventDefault();
      this.#add(files);
    });
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    document.addEventListener("dragover", (event) => {
      if (hasFiles(event)) event.preventDefault();
    });
    document.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      // The browser would leave the page and show the file.
      event.preventDefault();
      this.#add([...event.dataTransfer.files]);
    });
  }

  async #add(files) {
    const images = imagesAmong(files);
    if (images.length < files.length) this.#trouble("Only images can be added.");
    if (images.length === 0) return undefined;
    if (!this.#state.sees) return this.#trouble(this.#blind());
    for (const file of images) {
      try {
        const url = await read(file);
        this.#show([...this.#images, url]);
      } catch (error) {
        this.#trouble(error.message);
      }
    }
    return this.focus();
  }

  /** The reason why no image can be added. */
  #blind() {
    if (this.#state.mode === "text") return "Images belong into a chat, not into a text.";
    return this.#state.blind;
  }

  #show(images) {
    this.#images = images;
    const shown = images.map((src, at) => {
      const remove = () => this.#show(this.#images.filter((_, other) => other !== at));
      const label = `Remove image ${at + 1}`;
      const properties = { type: "button", class: "bare", "aria-label": label, title: label };
      const button = element("button", { ...properties, onclick: remove }, icon("close"));
      const picture = element("img", { src, alt: `Image ${at + 1}` });
      return element("span", { class: "attachment" }, picture, button);
    });
    $("attachments").replaceChildren(...shown);
    $("attachments").hidden = images.length === 0;
    this.#showButton();
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
   * the reader only `waits` briefly. `blind` is the reason why the model does not see images, if it does not.
   */
  update({ mode, running, begun, off, waits, sees, blind }) {
    this.#state = { mode, running, begun, off, sees, blind };
    $("attach").hidden = !sees;
    if (!sees && this.#images.length > 0) this.#show([]);
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
    const isEmpty = this.#field.value.trim() === "" && this.#images.length === 0;
    if (mode === "chat") return isEmpty ? "Write a message first" : "";
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
