// A menu below a button.

import { element } from "./dom.mjs";

/** Makes `button` open a menu of `items()`: {label, action}. Arrow keys move, Escape closes. */
export function menuOf(button, items) {
  let menu = null;

  function close(focus = true) {
    menu?.remove();
    menu = null;
    button.setAttribute("aria-expanded", "false");
    document.removeEventListener("pointerdown", outside, true);
    if (focus) button.focus();
  }
  function outside(event) {
    if (!menu.contains(event.target) && !button.contains(event.target)) close(false);
  }
  function move(event) {
    const entries = [...menu.children];
    const at = entries.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[event.key];
    if (next !== undefined) {
      event.preventDefault();
      entries.at(next % entries.length).focus();
    } else if (event.key === "Escape" || event.key === "Tab") {
      event.stopPropagation();
      close();
    }
  }
  function open() {
    const entry = ({ label, action }) => {
      const chosen = () => {
        close();
        action();
      };
      return element("button", { type: "button", role: "menuitem", tabindex: -1, onclick: chosen }, label);
    };
    menu = element("div", { class: "menu", role: "menu", onkeydown: move }, items().map(entry));
    button.after(menu);
    button.setAttribute("aria-expanded", "true");
    document.addEventListener("pointerdown", outside, true);
    menu.firstChild.focus();
  }

  button.setAttribute("aria-haspopup", "menu");
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => (menu === null ? open() : close()));
}
