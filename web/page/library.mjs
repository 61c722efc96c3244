// The models of this page, and the loaded one: the demo model, downloaded models, and a file from the user's
// disk while the page is open.

import { demoModel, load, models } from "../sterna/browser.js";

/** The demo model's name in the list. */
const DEMO = "sterna-world (in this page)";

/**
 * Dispatches `progress` {id, phase, fraction} while a model is loading, `loaded`, and `changed` when the list
 * of models has changed.
 */
export const events = new EventTarget();
const tell = (type, detail) => events.dispatchEvent(Object.assign(new Event(type), { detail }));

/** URLs and files added while the page is open, by name. */
const added = new Map();
/** The model that is loaded or loading: {id, model: Promise}. */
let current = null;

/** All models: {id, source, kept}, the demo model first. */
export async function all() {
  const kept = (await models.list().catch(() => [])).filter(({ complete }) => complete);
  const list = [{ id: DEMO, source: demoModel, kept: false }];
  const taken = () => new Set(list.map(({ id }) => id));
  for (const { url } of kept) list.push({ id: nameFor(url, taken()), source: url, kept: true });
  for (const [id, source] of added) {
    if (!list.some((known) => known.id === id || known.source === source))
      list.push({ id, source, kept: false });
  }
  return list;
}

/** The file name in a URL; the whole URL if another model has that name. */
function nameFor(url, taken) {
  const name = decodeURIComponent(new URL(url).pathname.split("/").at(-1)).replace(/\.gguf$/i, "");
  return name === "" || taken.has(name) ? url : name;
}

/** True if the model is loaded. */
export const isLoaded = (id) => current?.id === id && current.ready;

/** Adds a URL or a file; returns its name. */
export async function add(source) {
  const list = await all();
  const url = source instanceof File ? null : new URL(source, document.baseURI).href;
  const known = list.find((one) => one.source === url);
  if (known !== undefined) return known.id;
  const taken = new Set(list.map(({ id }) => id));
  const id = url === null ? source.name.replace(/\.gguf$/i, "") : nameFor(url, taken);
  added.set(id, url ?? source);
  tell("changed");
  return id;
}

/** Removes a downloaded model from the browser. */
export async function remove(id) {
  const found = (await all()).find((one) => one.id === id);
  if (current?.id === id) await forget();
  added.delete(id);
  if (found?.kept) await models.remove(found.source);
  tell("changed");
}

/** The model with that name, or the first one. Loads it if it is not the current one. */
export async function open(id) {
  const list = await all();
  const found = list.find((one) => one.id === id) ?? list[0];
  if (current?.id === found.id) return current.model;
  await forget();
  const abort = new AbortController();
  const opened = { id: found.id, ready: false, abort, model: null };
  opened.model = loaded(found, opened, abort.signal);
  current = opened;
  return opened.model;
}

async function loaded({ id, source }, opened, signal) {
  const onProgress = ({ phase, fraction }) => tell("progress", { id, phase, fraction });
  try {
    const store = source !== demoModel;
    // Some browsers ask the user, and answer only afterwards.
    if (store && !(source instanceof File)) models.persist().catch(() => false);
    const backend = new URLSearchParams(location.search).get("backend") ?? undefined;
    const model = await load(source, { onProgress, signal, store, backend });
    opened.ready = true;
    tell("loaded", { id, model });
    return model;
  } catch (error) {
    if (current === opened) current = null;
    // A file that cannot be loaded is not offered again.
    if (source instanceof File) added.delete(id);
    tell("failed", { id, error });
    throw error;
  }
}

/** Cancels loading. */
export const cancel = () => current?.abort.abort();

/** Frees the loaded model: the next question loads it again. */
export async function forget() {
  const before = current;
  current = null;
  before?.abort.abort();
  const model = await before?.model.catch(() => null);
  await model?.dispose();
}
