// Lets the user choose a model, and shows the device it runs on. An addition to the server's page.

import { element } from "./dom.mjs";
import { icon } from "./icons.mjs";
import * as library from "./library.mjs";
import { keep } from "./preferences.mjs";

const $ = (id) => document.getElementById(id);
const PHASES = { download: "Downloading", load: "Loading" };

/** Adjusts texts of the server's page that do not apply without a server. */
function reworded() {
  $("key-form").closest("section").hidden = true;
  for (const hint of document.querySelectorAll("#settings .hint")) {
    const [text] = hint.childNodes;
    if (!(text instanceof Text)) continue;
    text.data = text.data
      .replace("use the server's default", "use the model's default")
      .replace(
        "They are stored in this browser, and not on the server.",
        "They are only stored in this browser.",
      );
  }
}

function bytes(n) {
  return n >= 1e9 ? `${(n / 1e9).toFixed(2)} GB` : `${(n / 1e6).toFixed(1)} MB`;
}

/** The dialog, and the button that opens it. */
class Picker {
  #dialog;
  #list = element("ul", { class: "models" });
  #device = element("div", { class: "device" });
  #problem = element("p", { class: "problem trouble", role: "alert" });
  #progress = element("progress", { id: "loading-bar", "aria-label": "Loaded", max: 1 });
  #loading = element("p", { id: "loading", hidden: true });

  constructor() {
    const open = element(
      "button",
      { id: "open-models", type: "button", class: "bare", title: "Models", "aria-label": "Models" },
      icon("plus"),
    );
    open.addEventListener("click", () => this.#open());
    $("model-box").after(open);
    const close = element(
      "button",
      { type: "button", class: "bare", "aria-label": "Close models" },
      icon("close"),
    );
    const url = element("input", {
      id: "model-url",
      class: "field",
      type: "url",
      placeholder: "https://…/model.gguf",
      "aria-label": "Address of a GGUF file",
      required: true,
    });
    const form = element(
      "form",
      { id: "model-form", class: "row" },
      url,
      element("button", { type: "submit", class: "primary" }, "Download"),
    );
    const file = element("input", { id: "model-file", type: "file", accept: ".gguf", hidden: true });
    const browse = element("button", { type: "button", class: "outline" }, "Open a file");
    this.#dialog = element(
      "dialog",
      { id: "models", "aria-labelledby": "models-title" },
      element(
        "div",
        { class: "sheet" },
        element("header", {}, element("h2", { id: "models-title" }, "Models"), close),
        this.#list,
        this.#problem,
        element("section", {}, element("h3", {}, "From an address"), form, this.#hint("download")),
        element("section", {}, element("h3", {}, "From this device"), browse, file, this.#hint("file")),
        element("section", {}, element("h3", {}, "Runs on"), this.#device),
      ),
    );
    document.body.append(this.#dialog);
    this.#loading.append(element("span", { id: "loading-text" }), this.#progress, this.#giveUp());
    $("foot").prepend(this.#loading);

    close.addEventListener("click", () => this.#dialog.close());
    this.#dialog.addEventListener("click", ({ target }) => target === this.#dialog && this.#dialog.close());
    browse.addEventListener("click", () => file.click());
    file.addEventListener("change", () => {
      if (file.files.length > 0) this.#add(file.files[0]);
      file.value = "";
    });
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#add(url.value.trim());
      url.value = "";
    });
    addEventListener("dragover", (event) => event.preventDefault());
    const takeModel = (event) => {
      event.preventDefault();
      const [dropped] = event.dataTransfer.files;
      if (!dropped?.name.toLowerCase().endsWith(".gguf")) return;
      // The field for messages would look for images.
      event.stopPropagation();
      this.#add(dropped);
    };
    addEventListener("drop", takeModel, { capture: true });
    const on = (type, listener) => library.events.addEventListener(type, ({ detail }) => listener(detail));
    on("progress", (progress) => this.#loads(progress));
    on("loaded", ({ model }) => this.#loaded(model));
    on("failed", ({ error }) => this.#failed(error));
    on("changed", () => this.#show());
  }

  #hint(what) {
    const words = {
      download:
        "A GGUF file whose server allows it (CORS), as the Hugging Face hub does. It is downloaded once.",
      file: "It is read locally and not uploaded. You can also drop it on this page.",
    };
    return element("p", { class: "hint" }, words[what]);
  }

  #giveUp() {
    const button = element("button", { type: "button", class: "link" }, "Cancel");
    button.addEventListener("click", () => library.cancel());
    return button;
  }

  #open() {
    this.#show();
    this.#dialog.showModal();
  }

  async #add(source) {
    this.#problem.textContent = "";
    try {
      this.#pick(await library.add(source));
    } catch (error) {
      this.#problem.textContent = error.message;
    }
  }

  /** Does the same as the list at the top of the page. */
  async #pick(id) {
    const list = await library.all();
    const select = $("model");
    select.replaceChildren(...list.map((one) => element("option", { value: one.id }, one.id)));
    select.value = id;
    select.dispatchEvent(new Event("change"));
    this.#dialog.close();
  }

  async #show() {
    const list = await library.all();
    const entry = ({ id, kept }) => {
      const take = element("button", { type: "button", class: "take" }, id);
      take.addEventListener("click", () => this.#pick(id));
      const remove = element(
        "button",
        { type: "button", class: "link", "aria-label": `Remove ${id}` },
        "Remove",
      );
      remove.addEventListener("click", async () => {
        await library.remove(id);
        keep("model", null);
      });
      const isCurrent = library.isLoaded(id);
      return element("li", { "aria-current": isCurrent && "true" }, take, kept && remove);
    };
    this.#list.replaceChildren(...list.map(entry));
  }

  #loads({ id, phase, fraction }) {
    this.#loading.hidden = false;
    const done = fraction === null ? "" : `: ${Math.floor(fraction * 100)} %`;
    $("loading-text").textContent = `${PHASES[phase]} ${id}${done}`;
    if (fraction === null) this.#progress.removeAttribute("value");
    else this.#progress.value = fraction;
  }

  #loaded({ device, plan, nCtx, notices }) {
    this.#loading.hidden = true;
    const what = device.backend === "webgpu" ? "WebGPU" : "The CPU";
    const memory = plan.weightsBytes + plan.kvBytes + plan.buffersBytes;
    const lines = [
      `${what}: ${device.description}`,
      ...device.lacks.map((lack) => `Lacks ${lack}`),
      `${bytes(memory)}, ${bytes(plan.kvBytes)} of them for a context of ${nCtx} tokens`,
      ...notices,
    ];
    this.#device.replaceChildren(...lines.map((line) => element("p", {}, line)));
    this.#show();
  }

  #failed(error) {
    this.#loading.hidden = true;
    if (error.name !== "AbortError") this.#problem.textContent = error.message;
    this.#show();
  }
}

reworded();
new Picker();
// Works offline after the first visit. Browsers without service workers need the network each time.
navigator.serviceWorker?.register("offline.js").catch(() => {});
