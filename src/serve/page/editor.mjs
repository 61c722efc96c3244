// Fields for longer text.

import { element } from "./dom.mjs";

/** Keeps a field as high as its text; the style sheet limits it. */
export function growing(field) {
  const size = () => {
    field.style.height = "auto";
    field.style.height = `${field.scrollHeight + 2}px`;
  };
  field.addEventListener("input", size);
  return size;
}

/**
 * Inserts a field with `text` into `place`, before `before`, until it is submitted or cancelled. Calls
 * `keep(text)` if submitted. While it is open, `place` has the class `editing`.
 */
export function edit(place, before, { text, label, submit, keep, closed }) {
  const field = element("textarea", { class: "field", "aria-label": label, rows: 3 });
  field.value = text;
  const close = () => {
    form.remove();
    place.classList.remove("editing");
    closed?.();
  };
  const onsubmit = (event) => {
    event.preventDefault();
    close();
    keep(field.value);
  };
  const form = element(
    "form",
    { class: "editor", onsubmit },
    field,
    element("button", { type: "submit", class: "primary" }, submit),
    element("button", { type: "button", class: "quiet", onclick: close }, "Cancel"),
  );
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      // Closes only this editor, without stopping an answer that is being generated.
      event.stopPropagation();
      close();
    }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  place.classList.add("editing");
  place.insertBefore(form, before);
  growing(field)();
  field.focus();
}
