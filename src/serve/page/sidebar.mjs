// The list of conversations, with a search. On a narrow screen it overlays the page.

import { matches, titleOf } from "./conversation.mjs";
import { element } from "./dom.mjs";
import { keep, recall } from "./preferences.mjs";

const $ = (id) => document.getElementById(id);
const NARROW = matchMedia("(max-width: 52rem)");
const CLOSED = "list-closed";

export class Sidebar {
  #list = $("list");
  #search = $("search");
  #show = () => {};

  constructor() {
    this.#search.addEventListener("input", () => this.#show());
    this.#search.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.#search.value === "") return;
      event.stopPropagation();
      this.#search.value = "";
      this.#show();
    });
    for (const id of ["open-list", "close-list"]) $(id).addEventListener("click", () => this.toggle());
    $("shade").addEventListener("click", () => this.toggle(false));
    $("sidebar").addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !NARROW.matches) return;
      event.stopPropagation();
      this.toggle(false);
    });
    NARROW.addEventListener("change", () => this.#place());
    this.#place();
  }

  /** Opens or closes the list; on a wide screen this is remembered. */
  toggle(open = document.body.classList.contains("list-closed")) {
    this.#set(open);
    if (!NARROW.matches) keep(CLOSED, String(!open));
    (open ? $("close-list") : $("open-list")).focus();
  }

  /** Closes the list if it overlays the page. */
  settle() {
    if (NARROW.matches) this.#set(false);
  }

  search() {
    this.#set(true);
    this.#search.select();
    this.#search.focus();
  }

  /** Shows these conversations, the newest first. */
  update(conversations, current, running) {
    this.#show = () => {
      const query = this.#search.value.trim();
      const found = conversations.filter((conversation) => matches(conversation, query));
      found.sort((one, other) => other.updated - one.updated);
      this.#list.replaceChildren(...found.map((conversation) => entry(conversation, current, running)));
      const none =
        query === "" ? "Conversations appear here. They stay in this browser." : "Nothing found.";
      $("list-empty").textContent = found.length === 0 ? none : "";
    };
    this.#show();
  }

  #place() {
    this.#set(!NARROW.matches && recall(CLOSED) !== "true");
  }

  #set(open) {
    document.body.classList.toggle("list-closed", !open);
    // Hidden parts must not be reachable by keyboard: the closed list, and the page below an overlaying list.
    $("sidebar").inert = !open;
    $("main").inert = open && NARROW.matches;
    $("open-list").setAttribute("aria-expanded", String(open));
  }
}

function entry(conversation, current, running) {
  const shown = conversation === current;
  const link = element(
    "a",
    {
      href: `#${conversation.id}`,
      "aria-current": shown && "page",
      class: running(conversation) && "writing",
    },
    titleOf(conversation),
  );
  return element("li", {}, link);
}
