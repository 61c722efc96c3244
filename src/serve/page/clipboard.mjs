// Copying text.

import { element } from "./dom.mjs";

/** A button that copies what `text()` returns, and briefly confirms it. */
export function copyButton(text, properties = {}) {
  const button = element(
    "button",
    { type: "button", class: "quiet", ...properties, onclick: copy },
    "Copy",
  );
  async function copy() {
    button.textContent = (await copied(text())) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 1600);
  }
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages loaded over plain HTTP from another machine have no clipboard.
    return copiedBySelection(text);
  }
}

function copiedBySelection(text) {
  const focused = document.activeElement;
  const field = element("textarea", { class: "unseen", readonly: true, "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return done;
}
