// A conversation is a tree of turns. The visible text is one path through it: at every fork, the chosen
// version. Editing and retrying add versions; nothing is overwritten. Plain data without DOM or storage, so
// that conversations are stored as these objects.
//
// There are two modes. In `chat`, turns of a user and an assistant alternate and are rendered by a chat
// template. In `text`, turns are passages of one text, written by the user or the model, with no separators.

/** An empty conversation. */
export function newConversation(mode, now = Date.now()) {
  const id = crypto.randomUUID();
  return {
    id,
    title: "",
    mode,
    system: "",
    created: now,
    updated: now,
    children: [],
    chosen: 0,
    turns: {},
  };
}

/** Adds a turn below `parent` (null: at the start), makes it the visible version, and returns it. */
export function addTurn(conversation, parent, role, text) {
  const id = crypto.randomUUID();
  const turn = { id, parent, role, text, children: [], chosen: 0 };
  conversation.turns[id] = turn;
  const fork = forkOf(conversation, parent);
  fork.children.push(id);
  fork.chosen = fork.children.length - 1;
  return turn;
}

/** The visible turns, from first to last. */
export function pathOf(conversation) {
  const path = [];
  for (let fork = conversation; fork.children.length > 0; fork = path.at(-1)) {
    path.push(conversation.turns[fork.children[fork.chosen]]);
  }
  return path;
}

/** The turns from the first up to and including `turn`. */
export function pathTo(conversation, turn) {
  const path = [];
  for (let at = turn; at; at = conversation.turns[at.parent]) path.push(at);
  return path.reverse();
}

/** Index of a turn among the versions at its position, from 1, and their number. */
export function versionOf(conversation, turn) {
  const { children } = forkOf(conversation, turn.parent);
  return { number: children.indexOf(turn.id) + 1, count: children.length };
}

/** Shows the version `step` positions away from `turn` instead of it. */
export function chooseVersion(conversation, turn, step) {
  const fork = forkOf(conversation, turn.parent);
  const at = fork.children.indexOf(turn.id) + step;
  if (at >= 0 && at < fork.children.length) fork.chosen = at;
}

/** A new conversation from the turns up to `turn`, without their other versions. */
export function branchOf(conversation, turn) {
  const branch = newConversation(conversation.mode);
  branch.title = conversation.title;
  branch.system = conversation.system;
  let parent = null;
  for (const original of pathTo(conversation, turn)) {
    const copy = addTurn(branch, parent, original.role, original.text);
    const { id, children, chosen } = copy;
    Object.assign(copy, original, { id, parent, children, chosen });
    parent = id;
  }
  return branch;
}

/** The messages to send for generating the turn after `turns`. */
export function messagesOf(conversation, turns) {
  const system = conversation.system.trim();
  const messages = system === "" ? [] : [{ role: "system", content: system }];
  return messages.concat(turns.map((turn) => ({ role: turn.role, content: contentOf(turn) })));
}

/** A turn's text, or its images and then its text. */
function contentOf({ text, images = [] }) {
  if (images.length === 0) return text;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return text === "" ? parts : [...parts, { type: "text", text }];
}

/** The visible passages as one text. */
export function wholeText(turns) {
  return turns.map(({ text }) => text).join("");
}

/**
 * Replaces the visible text by `text`. Passages are kept up to the first that differs; the rest becomes
 * another version next to it, by the user. Returns the last passage, or null if there is no text.
 */
export function rewrite(conversation, text) {
  const shown = pathOf(conversation);
  const last = shown.at(-1) ?? null;
  let parent = null;
  let rest = text;
  for (const turn of shown) {
    const cut = rest === "" && turn.text !== "";
    if (cut || !rest.startsWith(turn.text)) break;
    rest = rest.slice(turn.text.length);
    parent = turn.id;
  }
  if (rest === "" && parent === (last?.id ?? null)) return last;
  // If the text was only shortened, this is an empty passage that marks the new end.
  return addTurn(conversation, parent, "user", rest);
}

/** The title, or the first words of the conversation. */
export function titleOf(conversation) {
  if (conversation.title !== "") return conversation.title;
  const first = pathOf(conversation).find(({ text }) => text.trim() !== "");
  const text = (first?.text ?? "").trim().replace(/\s+/g, " ");
  const short = text.length <= 48 ? text : `${text.slice(0, 48).replace(/\s+\S*$/, "")}…`;
  return short || (conversation.mode === "chat" ? "New chat" : "New text");
}

/** True if every word of `query` occurs in the title or in a turn. */
export function matches(conversation, query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = Object.values(conversation.turns).map(({ text }) => text);
  const all = [titleOf(conversation), ...texts].join("\n").toLowerCase();
  return words.every((word) => all.includes(word));
}

const forkOf = (conversation, parent) => (parent === null ? conversation : conversation.turns[parent]);
