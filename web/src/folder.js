// Storage of models in Node and Deno: a cache folder of the user, with the same files as `opfs.js`.

import { createHash } from "node:crypto";
import * as fs from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import process from "node:process";

import { download } from "./download.js";

/** `$XDG_CACHE_HOME/sterna/web`, or `~/.cache/sterna/web`; on Windows `%LOCALAPPDATA%\sterna\web`. */
function folder() {
  const { LOCALAPPDATA, XDG_CACHE_HOME } = process.env;
  const caches = XDG_CACHE_HOME || LOCALAPPDATA || join(homedir(), ".cache");
  const path = join(caches, "sterna", "web");
  fs.mkdirSync(path, { recursive: true });
  return path;
}

const hashOf = (url) => createHash("sha256").update(url).digest("hex").slice(0, 32);

function readJson(path) {
  try {
    return JSON.parse(fs.readFileSync(path, "utf8"));
  } catch {
    return null;
  }
}

class Place {
  #state;
  #file;
  #note;

  constructor(path, known, note) {
    // Opened for writing at any position, and created if missing.
    this.#file = fs.openSync(path, fs.constants.O_RDWR | fs.constants.O_CREAT);
    if (known === null) fs.ftruncateSync(this.#file, 0);
    const { size } = fs.fstatSync(this.#file);
    this.#state = { size, tag: known?.tag ?? null, total: known?.total ?? null };
    this.#note = note;
  }

  state() {
    return this.#state;
  }

  begin(tag, total) {
    fs.ftruncateSync(this.#file, 0);
    this.#state = { size: 0, tag, total };
    this.#note(this.#state);
  }

  write(bytes) {
    for (let done = 0; done < bytes.length;) {
      const n = fs.writeSync(this.#file, bytes, done, bytes.length - done, this.#state.size);
      done += n;
      this.#state.size += n;
    }
  }

  finish() {
    this.#state.total = this.#state.size;
  }

  close() {
    fs.closeSync(this.#file);
  }
}

/** Path of the model with a URL. Downloads it unless it is stored already. */
export async function stored(url, { signal, progress }) {
  const base = join(folder(), hashOf(url));
  const [path, about] = [`${base}.gguf`, `${base}.json`];
  const known = readJson(about);
  const note = ({ tag, total }, done = false) =>
    fs.writeFileSync(about, JSON.stringify({ url, tag, total, done, used: Date.now() }));
  if (known?.done === true && fs.existsSync(path)) {
    note(known, true);
    return path;
  }
  const place = new Place(path, known, note);
  try {
    await download(url, place, { signal, progress });
    note(place.state(), true);
  } finally {
    place.close();
  }
  return path;
}

/** The stored models: {url, bytes, complete, used}. */
export async function list() {
  const dir = folder();
  const found = [];
  for (const name of fs.readdirSync(dir).filter((name) => name.endsWith(".json"))) {
    const known = readJson(join(dir, name));
    const path = join(dir, name.replace(/json$/, "gguf"));
    if (known === null || !fs.existsSync(path)) continue;
    const { size: bytes } = fs.statSync(path);
    found.push({ url: known.url, bytes, complete: known.done === true, used: new Date(known.used) });
  }
  return found.sort((a, b) => b.used - a.used);
}

/** Removes the stored model of a URL; returns true if there was one. */
export async function remove(url) {
  const base = join(folder(), hashOf(url));
  const paths = [`${base}.gguf`, `${base}.json`].filter((path) => fs.existsSync(path));
  for (const path of paths) fs.rmSync(path);
  return paths.length > 0;
}
