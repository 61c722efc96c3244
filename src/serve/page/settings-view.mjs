// The settings dialog.

import { key } from "./api.mjs";
import { element } from "./dom.mjs";
import { keep } from "./preferences.mjs";
import { PARAMETERS, choose, chosen, defaultOf, offered, reset } from "./settings.mjs";

const $ = (id) => document.getElementById(id);

/** `page` has: conversation, server, and the actions systemChanged, keyChanged. */
export class SettingsView {
  #dialog = $("settings");
  #page;

  constructor(page) {
    this.#page = page;
    $("open-settings").addEventListener("click", () => this.open());
    $("close-settings").addEventListener("click", () => this.#dialog.close());
    // A click outside hits the dialog element itself, because its content fills it.
    this.#dialog.addEventListener("click", ({ target }) => target === this.#dialog && this.#dialog.close());
    $("system").addEventListener("change", ({ target }) => page.systemChanged(target.value));
    $("reset").addEventListener("click", () => {
      reset();
      this.#parameters();
    });
    $("stop").addEventListener("change", ({ target }) => {
      const stops = target.value.split("\n").filter((line) => line !== "");
      choose("stop", stops.length > 0 ? stops : null);
    });
    $("key-form").addEventListener("submit", (event) => event.preventDefault());
    $("key").addEventListener("change", ({ target }) => page.keyChanged(target.value.trim()));
    for (const radio of this.#dialog.querySelectorAll("[name=theme]")) {
      radio.addEventListener("change", () => setTheme(radio.value));
    }
  }

  open() {
    const { conversation, server } = this.#page;
    $("system-part").hidden = conversation.mode !== "chat";
    $("system").value = conversation.system;
    $("key").value = key.get();
    $("about").textContent = [server.props.name, server.props.build].filter(Boolean).join(" · ");
    for (const radio of this.#dialog.querySelectorAll("[name=theme]")) {
      radio.checked = radio.value === document.documentElement.dataset.theme;
    }
    this.#parameters();
    this.#dialog.showModal();
  }

  #parameters() {
    const { params } = this.#page.server.props;
    const { mode } = this.#page.conversation;
    const shown = PARAMETERS.filter((parameter) => offered(parameter, params));
    const fields = (list) => list.map((parameter) => parameterField(parameter, params, mode));
    const more = shown.filter(({ first }) => !first);
    $("parameters").replaceChildren(...fields(shown.filter(({ first }) => first)));
    $("more-parameters").replaceChildren(...fields(more));
    $("stop").value = (chosen().stop ?? []).join("\n");
    // Changed settings are visible.
    if (["stop", ...more.map(({ name }) => name)].some((name) => name in chosen())) $("more").open = true;
  }
}

/** Label, number field, and the server's default as its placeholder. */
function parameterField(parameter, params, mode) {
  const { name, label, min, max, step, hint } = parameter;
  const standard = defaultOf(parameter, params, mode);
  const field = element("input", {
    id: `parameter-${name}`,
    type: "number",
    inputmode: "decimal",
    placeholder: name === "n_predict" && standard < 0 ? "no limit" : (standard ?? "random"),
    "aria-describedby": `hint-${name}`,
    ...{ min, max, step },
    onchange: () => {
      const value = field.valueAsNumber;
      // `step` is for the arrow keys; values in between are valid unless the parameter is an integer.
      const { rangeUnderflow, rangeOverflow, stepMismatch } = field.validity;
      if (rangeUnderflow || rangeOverflow || (step === 1 && stepMismatch)) return field.reportValidity();
      return choose(name, Number.isFinite(value) ? value : null);
    },
  });
  const value = chosen()[name];
  if (Number.isFinite(value)) field.value = String(value);
  return element(
    "div",
    { class: "parameter" },
    element("label", { for: field.id }, label),
    field,
    element("p", { class: "hint", id: `hint-${name}` }, hint),
  );
}

/** Sets light, dark, or system, and remembers it. */
export function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  keep("theme", theme === "system" ? null : theme);
}

/** True if the page is dark now, by setting or by system. */
export function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme === "dark" || (theme === "system" && matchMedia("(prefers-color-scheme: dark)").matches);
}
