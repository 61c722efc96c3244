// The page: the visible conversation, the list of all conversations, and the answers being generated.
//
// Start reading here. `conversation.mjs` is the data, `run.mjs` generates an answer into it, and the views
// show it.

import { key } from "./api.mjs";
import { Composer } from "./composer.mjs";
import * as tree from "./conversation.mjs";
import { element } from "./dom.mjs";
import { icon } from "./icons.mjs";
import { menuOf } from "./menu.mjs";
import { keep, recall } from "./preferences.mjs";
import { Run } from "./run.mjs";
import { Server } from "./server.mjs";
import { SettingsView, isDark, setTheme } from "./settings-view.mjs";
import { Sidebar } from "./sidebar.mjs";
import { Memory, Store } from "./store.mjs";
import { Thread } from "./thread.mjs";
import { exported, imported } from "./transfer.mjs";

const $ = (id) => document.getElementById(id);

/** Openings for a model that continues text. On a first visit the field contains the first one. */
const OPENINGS = ["Once upon a time", "There was once a king", "The little rabbit"];
/** Reasons why nothing can be sent, by the server's state. */
const OFF = {
  connecting: "You can send when the server has answered.",
  loading: "You can send when the model is loaded.",
  failed: "You can send when a model is loaded.",
  unreachable: "You can send when the server is back.",
  locked: "You can send when the key is entered.",
};
/** The reason why a model of a server sees no images. */
const BLIND = "This model sees no images: the server has to be started with its mmproj file.";
/** The reason for a model that only makes embeddings or scores. */
const NO_TEXT = "This model makes embeddings and writes no text.";
/**
 * The demo model's name, and questions for it, as in src/demo.rs. On a first visit the field contains the
 * first one.
 */
const DEMO = "sterna-world";
const QUESTIONS = ["Tell me a story about a shy owl in winter.", "What can you do?", "What is 12 plus 30?"];
const SAVE_EVERY_MS = 1000;

class Page {
  conversation = tree.newConversation("chat");
  server = new Server(() => this.#serverChanged());
  #store = null;
  #conversations = new Map();
  /** The answers being generated, by conversation id. */
  #runs = new Map();
  #sidebar = new Sidebar();
  #thread = new Thread({
    again: (turn) => this.#again(turn),
    more: (turn) => this.#more(turn),
    fresh: () => this.#new(),
    edit: (turn, text) => this.#edit(turn, text),
    version: (turn, step) => this.#version(turn, step),
    branch: (turn) => this.#branch(turn),
    rewrite: (text) => this.#rewrite(text),
    shown: (run) => this.#showFigures([run.turn], run),
  });
  #composer = new Composer({
    send: (text, images) => this.#send(text, images),
    stop: () => this.#runs.get(this.conversation.id)?.stop(),
    recall: () => this.#thread.editLast(),
    trouble: (text) => this.#trouble(text),
  });

  async start() {
    this.#wire();
    new SettingsView(this);
    this.#store = await Store.open().catch(() => {
      this.#trouble("This browser stores no data for this page: closing the tab loses conversations.");
      return new Memory();
    });
    this.#store.listen((id) => this.#changedElsewhere(id));
    for (const conversation of await this.#store.all())
      this.#conversations.set(conversation.id, conversation);
    this.#openAddressed();
    addEventListener("hashchange", () => this.#openAddressed());
    await this.server.connect();
  }

  /** Called by the settings. */
  systemChanged(text) {
    this.conversation.system = text;
    this.#save(this.conversation);
  }

  keyChanged(text) {
    key.set(text);
    this.server.connect();
  }

  // --- The visible conversation.

  #openAddressed() {
    const id = decodeURIComponent(location.hash.slice(1));
    const found = this.#conversations.get(id);
    if (found === undefined) this.#new();
    else if (found !== this.conversation) this.#open(found);
  }

  #open(conversation) {
    this.conversation = conversation;
    this.#thread.open(conversation);
    if (this.#conversations.has(conversation.id)) location.hash = conversation.id;
    this.#sidebar.settle();
    this.#update();
    this.#composer.focus();
  }

  #new(mode = this.#preferredMode()) {
    if (location.hash !== "") history.pushState(null, "", location.pathname + location.search);
    this.#open(tree.newConversation(mode));
    this.#composer.set("");
    this.#suggest();
  }

  /** Fills the field on a first visit. */
  #suggest() {
    if (this.#conversations.size === 0 && this.#composer.text === "")
      this.#composer.set(this.#openings()[0] ?? "");
  }

  /** Suggested openings of the conversation. */
  #openings() {
    if (this.conversation.mode === "text") return OPENINGS;
    return this.server.props.name === DEMO ? QUESTIONS : [];
  }

  /** A model without a chat template continues text, unless the user has chosen otherwise for it. */
  #preferredMode() {
    const { name, chats } = this.server.props;
    return recall(`mode.${name}`) ?? (chats ? "chat" : "text");
  }

  #send(text, images = []) {
    const { conversation } = this;
    const shown = tree.pathOf(conversation);
    const last = shown.at(-1);
    let parent = last?.id ?? null;
    if (conversation.mode === "chat" || text !== "") {
      const said = conversation.mode === "chat" ? text : spaced(last, text);
      const turn = tree.addTurn(conversation, parent, "user", said);
      if (images.length > 0) turn.images = images;
      parent = turn.id;
    }
    if (parent === null) return;
    this.#conversations.set(conversation.id, conversation);
    location.hash = conversation.id;
    this.#write(conversation, tree.addTurn(conversation, parent, "assistant", ""));
    this.#thread.toEnd();
  }

  #again(turn) {
    // A turn with only an error is not kept as a version.
    if (turn.text === "" && turn.finish !== undefined) return this.#write(this.conversation, turn);
    return this.#write(this.conversation, tree.addTurn(this.conversation, turn.parent, "assistant", ""));
  }

  /** More of an answer extends the same turn; more of a text is a separate passage, which can be retried. */
  #more(turn) {
    if (this.conversation.mode === "text") this.#send("");
    else this.#write(this.conversation, turn);
  }

  #edit(turn, text) {
    const { conversation } = this;
    const version = tree.addTurn(conversation, turn.parent, turn.role, text);
    if (turn.images !== undefined) version.images = turn.images;
    if (turn.role === "user")
      return this.#write(conversation, tree.addTurn(conversation, version.id, "assistant", ""));
    version.finish = "edited";
    return this.#touched(conversation);
  }

  #rewrite(text) {
    tree.rewrite(this.conversation, text);
    this.#touched(this.conversation);
  }

  #version(turn, step) {
    tree.chooseVersion(this.conversation, turn, step);
    this.#touched(this.conversation);
    this.#thread.focusVersions(turn, step);
  }

  #branch(turn) {
    const branch = tree.branchOf(this.conversation, turn);
    this.#conversations.set(branch.id, branch);
    this.#save(branch);
    this.#open(branch);
    this.#toast("This is a copy of the conversation up to this turn.");
  }

  // --- Answers.

  async #write(conversation, turn) {
    // One answer at a time per conversation: a new one ends the previous one.
    const running = () => this.#runs.get(conversation.id);
    for (let before = running(); before !== undefined; before = running()) {
      before.stop();
      await before.ended;
    }
    let saved = performance.now();
    const run = new Run(conversation, turn, () => {
      if (conversation === this.conversation) this.#thread.grown(run);
      if (performance.now() - saved < SAVE_EVERY_MS) return;
      saved = performance.now();
      this.#save(conversation);
    });
    this.#runs.set(conversation.id, run);
    this.#touched(conversation);
    // The button that was pressed may be gone, and the focus with it.
    if (conversation === this.conversation) this.#composer.focus();
    try {
      await run.go(this.server);
    } finally {
      this.#runs.delete(conversation.id);
      this.#touched(conversation);
    }
    if (run.error !== null) this.server.failed(run.error);
    // Announced once when complete: piece by piece it could not be followed.
    if (conversation === this.conversation) $("announcer").textContent = turn.text;
  }

  #touched(conversation) {
    conversation.updated = Date.now();
    this.#save(conversation);
    this.#update();
  }

  async #save(conversation) {
    // The conversation is still empty, or was deleted while an answer was generated.
    if (!this.#conversations.has(conversation.id)) return;
    try {
      await this.#store.put(conversation);
    } catch (error) {
      const file = () => this.#exportOne(conversation);
      this.#trouble(`This conversation could not be stored: ${error.message}`, "Export", file);
    }
  }

  // --- The rest of the page.

  #update() {
    const { conversation } = this;
    const run = this.#runs.get(conversation.id) ?? null;
    const path = tree.pathOf(conversation);
    this.#thread.update(run);
    this.#sidebar.update([...this.#conversations.values()], conversation, ({ id }) => this.#runs.has(id));
    const begun = path.length > 0;
    $("empty").hidden = begun;
    $("title-text").textContent = begun ? tree.titleOf(conversation) : "New conversation";
    $("title").disabled = !begun;
    document.title = begun ? `${tree.titleOf(conversation)} · Sterna` : "Sterna";
    if (!begun) this.#showEmpty();
    const { state, props } = this.server;
    const silent = state === "ready" && props.writes === false ? NO_TEXT : "";
    const [off, waits] = [OFF[state] ?? silent, state === "connecting"];
    const sees = props.sees === true && conversation.mode === "chat";
    const blind = props.blind ?? BLIND;
    this.#composer.update({ mode: conversation.mode, running: run !== null, begun, off, waits, sees, blind });
    this.#showFigures(path, run);
  }

  #showFigures(path, run) {
    const newest = path.findLast(({ timings }) => timings);
    this.#composer.figures(newest?.timings, this.server.props.nCtx, run !== null);
  }

  #showEmpty() {
    const text = this.conversation.mode === "text";
    const { name, writes } = this.server.props;
    const known = this.server.state === "ready" && writes !== false;
    $("empty-title").textContent = known && text ? "Begin a text" : this.server.state === "ready" ? name : "";
    const hint = text
      ? `${name} continues your text.`
      : "Ask something, or paste what you are working on.";
    $("empty-hint").textContent = known ? hint : "";
    for (const button of $("modes").children) {
      button.setAttribute("aria-pressed", String(button.dataset.mode === this.conversation.mode));
    }
    $("modes").hidden = !known;
    const opening = (words) => {
      const take = () => {
        this.#composer.set(words);
        this.#composer.focus();
      };
      return element("button", { type: "button", class: "outline", onclick: take }, words);
    };
    $("openings").replaceChildren(...(known ? this.#openings().map(opening) : []));
  }

  #serverChanged() {
    const { state, props, models, model } = this.server;
    const several = models.length > 1;
    const words = {
      loading: several ? `${model ?? models[0].id} is being loaded.` : "The model is being loaded.",
      failed: `${model ?? "The model"} could not be loaded: ${this.server.failure}`,
      unreachable: "The server cannot be reached. Is it running? Trying again.",
      locked: "The server asks for a key.",
    };
    const ways = { failed: "Try again", unreachable: "Try now", locked: "Enter the key" };
    $("status").textContent = words[state] ?? "";
    $("state-way").textContent = ways[state] ?? "";
    $("state-way").hidden = !(state in ways);
    $("state").classList.toggle("trouble", state in ways);
    $("model-name").textContent = state === "ready" && !several ? props.name : "";
    $("model").hidden = !several;
    if (several) {
      const picked = model ?? models[0].id;
      const option = ({ id, loaded }) =>
        element("option", { value: id, selected: id === picked }, loaded ? id : `${id} (not loaded)`);
      $("model").replaceChildren(...models.map(option));
    }
    if (state === "locked" && !$("lock").open) {
      const refused = key.get() !== "";
      $("lock-hint").textContent = refused
        ? "The server rejected the last key."
        : "It is forgotten when this tab is closed.";
      $("lock-hint").classList.toggle("trouble", refused);
      $("lock").showModal();
    }
    const untouched = tree.pathOf(this.conversation).length === 0;
    if (state === "ready" && untouched) {
      // Keeps what was typed while the server was being asked.
      const draft = this.#composer.text;
      if (this.conversation.mode !== this.#preferredMode()) this.#new();
      if (draft !== "") this.#composer.set(draft);
      this.#suggest();
    }
    this.#update();
  }

  async #changedElsewhere(id) {
    // A conversation with a running answer is newer than another tab's copy.
    if (this.#runs.has(id)) return;
    const stored = await this.#store.get(id);
    if (stored === undefined) this.#conversations.delete(id);
    else this.#conversations.set(id, stored);
    if (this.conversation.id === id && stored !== undefined) this.#open(stored);
    else this.#update();
  }

  // --- Whole conversations.

  #rename() {
    const { conversation } = this;
    const box = $("title-box");
    const field = element("input", { class: "field", "aria-label": "Title" });
    field.value = tree.titleOf(conversation);
    const close = (kept) => {
      if (!box.classList.contains("editing")) return;
      box.classList.remove("editing");
      if (kept) conversation.title = field.value.trim();
      field.remove();
      this.#touched(conversation);
      $("title").focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") event.stopPropagation();
      if (event.key === "Escape" || event.key === "Enter") close(event.key === "Enter");
    });
    field.addEventListener("blur", () => close(true));
    box.classList.add("editing");
    box.append(field);
    field.select();
  }

  async #delete(conversations) {
    for (const { id } of conversations) {
      this.#runs.get(id)?.stop();
      this.#conversations.delete(id);
    }
    this.#new();
    for (const { id } of conversations) await this.#store.delete(id);
    const undo = async () => {
      for (const conversation of conversations) {
        this.#conversations.set(conversation.id, conversation);
        await this.#save(conversation);
      }
      this.#open(conversations[0]);
    };
    const what = conversations.length === 1 ? "The conversation was" : "All conversations were";
    this.#toast(`${what} deleted.`, "Undo", undo);
  }

  #export(conversations, name) {
    const file = new Blob([exported(conversations)], { type: "application/json" });
    const address = URL.createObjectURL(file);
    element("a", { href: address, download: `${name}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }

  #exportOne(conversation) {
    this.#export([conversation], fileName(tree.titleOf(conversation)));
  }

  async #import(file) {
    try {
      const conversations = imported(await file.text());
      for (const conversation of conversations) {
        // An imported conversation may already be here, and have changed since: both are kept.
        if (this.#conversations.has(conversation.id)) conversation.id = crypto.randomUUID();
        this.#conversations.set(conversation.id, conversation);
        await this.#save(conversation);
      }
      this.#update();
      this.#toast(`${conversations.length} imported.`);
    } catch (error) {
      this.#trouble(error.message, "Import another", () => $("import-file").click());
    }
  }

  #toast(text, action = null, act = null) {
    const button = element("button", { type: "button", class: "link" }, action ?? "");
    const note = element("div", { class: "toast" }, element("span", {}, text), action && button);
    button.addEventListener("click", () => {
      note.remove();
      act();
    });
    $("toast").replaceChildren(note);
    setTimeout(() => note.remove(), 8000);
    return note;
  }

  #trouble(text, action, act) {
    const note = this.#toast(text, action, act);
    note.classList.add("trouble");
    note.prepend(icon("warn"));
  }

  // --- Buttons and keys.

  #wire() {
    const drawings = {
      "close-list": "sidebar",
      "open-list": "sidebar",
      "open-settings": "sliders",
      "close-settings": "close",
    };
    for (const [id, name] of Object.entries({ ...drawings, "to-end": "down" })) $(id).append(icon(name));
    $("theme").append(icon("sun"), icon("moon"));
    $("new").prepend(icon("plus"));
    $("title").append(icon("open"));
    $("state").prepend(icon("warn"));

    const click = (id, action) => $(id).addEventListener("click", action);
    click("new", () => this.#new());
    click("theme", () => setTheme(isDark() ? "light" : "dark"));
    click("export-all", () => this.#export([...this.#conversations.values()], "sterna-conversations"));
    click("import", () => $("import-file").click());
    click("delete-all", () => {
      $("settings").close();
      if (this.#conversations.size > 0) this.#delete([...this.#conversations.values()]);
    });
    $("import-file").addEventListener("change", async ({ target }) => {
      // A message would be hidden by the dialog.
      $("settings").close();
      for (const file of target.files) await this.#import(file);
      target.value = "";
    });
    for (const button of $("modes").children) {
      button.addEventListener("click", () => {
        keep(`mode.${this.server.props.name}`, button.dataset.mode);
        this.#new(button.dataset.mode);
      });
    }
    $("model").addEventListener("change", ({ target }) => this.server.pick(target.value));
    click("state-way", () => {
      if (this.server.state === "locked") $("lock").showModal();
      else this.server.connect();
    });
    $("lock-form").addEventListener("submit", (event) => {
      event.preventDefault();
      $("lock").close();
      this.keyChanged($("lock-key").value.trim());
      $("lock-key").value = "";
    });
    menuOf($("title"), () => [
      { label: "Rename", action: () => this.#rename() },
      { label: "Export", action: () => this.#exportOne(this.conversation) },
      { label: "Delete", action: () => this.#delete([this.conversation]) },
    ]);
    document.addEventListener("keydown", (event) => this.#pressed(event));
  }

  #pressed(event) {
    const command = event.ctrlKey || event.metaKey;
    if (event.key === "Escape" && document.querySelector("dialog[open]") === null) {
      this.#runs.get(this.conversation.id)?.stop();
    } else if (command && event.shiftKey && event.key.toLowerCase() === "o") {
      event.preventDefault();
      this.#new();
    } else if (command && !event.shiftKey && event.key.toLowerCase() === "k") {
      event.preventDefault();
      this.#sidebar.search();
    }
  }
}

/** The user's addition to a text, with a space before it if two words would become one. */
function spaced(last, text) {
  const glued =
    last !== undefined && /[\p{L}\p{N}.,;:!?'"]$/u.test(last.text) && /^[\p{L}\p{N}]/u.test(text);
  return glued ? ` ${text}` : text;
}

/** A file name for a title. */
function fileName(title) {
  return title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "conversation";
}

new Page().start();
