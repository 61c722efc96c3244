// Export and import of conversations as a file. Files may come from anywhere: they are checked and copied
// field by field, so that nothing else gets into the store.

import { isImageUrl } from "./images.mjs";

const FORMAT = "sterna-conversations";
const VERSION = 1;

/** The text of a file with these conversations. */
export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1);
}

/** The conversations in a file's text. Throws an `Error` that describes what is wrong and where. */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new Error(`This file is not JSON: ${error.message}`);
  }
  if (file?.format !== FORMAT) throw new Error(`This file is no export: its "format" is not "${FORMAT}".`);
  if (file.version !== VERSION) {
    throw new Error(`This file has version ${String(file.version)}; this page reads version ${VERSION}.`);
  }
  if (!Array.isArray(file.conversations)) throw new Error(`"conversations" is not a list.`);
  return file.conversations.map((value, at) => conversationFrom(value, `conversations[${at}]`));
}

function conversationFrom(value, where) {
  const object = objectAt(value, where);
  const conversation = {
    id: idAt(object.id, `${where}.id`),
    title: stringAt(object.title, `${where}.title`),
    mode: oneOf(object.mode, ["chat", "text"], `${where}.mode`),
    system: stringAt(object.system, `${where}.system`),
    created: numberAt(object.created, `${where}.created`),
    updated: numberAt(object.updated, `${where}.updated`),
    ...forkFrom(object, where),
    turns: {},
  };
  const turns = objectAt(object.turns, `${where}.turns`);
  for (const [id, turn] of Object.entries(turns)) {
    conversation.turns[idAt(id, `${where}.turns`)] = turnFrom(turn, id, `${where}.turns.${id}`);
  }
  checkTree(conversation, where);
  return conversation;
}

function turnFrom(value, id, where) {
  const object = objectAt(value, where);
  const turn = {
    id,
    parent: object.parent === null ? null : idAt(object.parent, `${where}.parent`),
    role: oneOf(object.role, ["user", "assistant"], `${where}.role`),
    text: stringAt(object.text, `${where}.text`),
    ...forkFrom(object, where),
  };
  if (object.images !== undefined) turn.images = imagesFrom(object.images, `${where}.images`);
  if (object.reasoning !== undefined) turn.reasoning = stringAt(object.reasoning, `${where}.reasoning`);
  if (object.reasoningMs !== undefined)
    turn.reasoningMs = numberAt(object.reasoningMs, `${where}.reasoningMs`);
  if (object.finish !== undefined) turn.finish = stringAt(object.finish, `${where}.finish`);
  if (object.problem !== undefined) turn.problem = stringAt(object.problem, `${where}.problem`);
  if (object.timings !== undefined) {
    const timings = Object.entries(objectAt(object.timings, `${where}.timings`));
    turn.timings = Object.fromEntries(timings.filter(([, number]) => Number.isFinite(number)));
  }
  return turn;
}

function imagesFrom(value, where) {
  if (!Array.isArray(value)) throw new Error(`${where} is not a list.`);
  for (const [at, url] of value.entries()) {
    if (!isImageUrl(stringAt(url, `${where}[${at}]`))) throw new Error(`${where}[${at}] is no image.`);
  }
  return [...value];
}

function forkFrom(object, where) {
  if (!Array.isArray(object.children)) throw new Error(`${where}.children is not a list.`);
  const children = object.children.map((id, at) => idAt(id, `${where}.children[${at}]`));
  const last = Math.max(0, children.length - 1);
  const chosen = numberAt(object.chosen, `${where}.chosen`);
  if (!Number.isInteger(chosen) || chosen < 0 || chosen > last) {
    throw new Error(`${where}.chosen is ${chosen}, not one of 0 to ${last}.`);
  }
  return { children, chosen };
}

/** Every turn is a child of its parent exactly once, so the walk along children ends. */
function checkTree(conversation, where) {
  const { turns } = conversation;
  let hanging = 0;
  for (const [parent, { children }] of [[null, conversation], ...Object.entries(turns)]) {
    if (new Set(children).size < children.length)
      throw new Error(`${where}: a turn appears twice in a list.`);
    for (const id of children) {
      if (turns[id]?.parent !== parent) throw new Error(`${where}: turn ${id} has another parent.`);
      hanging += 1;
    }
  }
  const reached = new Set();
  const next = [...conversation.children];
  for (let id = next.pop(); id !== undefined; id = next.pop()) {
    reached.add(id);
    next.push(...turns[id].children);
  }
  const count = Object.keys(turns).length;
  if (hanging !== count || reached.size !== count) throw new Error(`${where}: some turns cannot be reached.`);
}

function objectAt(value, where) {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value;
  throw new Error(`${where} is not an object.`);
}

function stringAt(value, where) {
  if (typeof value === "string") return value;
  throw new Error(`${where} is not a string.`);
}

function numberAt(value, where) {
  if (Number.isFinite(value)) return value;
  throw new Error(`${where} is not a number.`);
}

/** An id becomes a key of an object, so names like `__proto__` are not allowed. */
function idAt(value, where) {
  if (typeof value === "string" && /^[A-Za-z0-9-]{1,64}$/.test(value)) return value;
  throw new Error(`${where} is not an id of letters, digits and dashes.`);
}

function oneOf(value, allowed, where) {
  if (allowed.includes(value)) return value;
  throw new Error(`${where} is ${JSON.stringify(value)}, not one of ${allowed.join(", ")}.`);
}
