// Conversations in the browser's IndexedDB. The server stores none of them.
//
// All are loaded at startup, because the list searches their text. Each change writes one whole record.

const NAME = "sterna";
const CONVERSATIONS = "conversations";

/** The database, and a channel that notifies other tabs of changes. */
export class Store {
  #database;
  #channel = new BroadcastChannel(NAME);

  /** Opens the database. Throws if the browser refuses, as some do in private windows. */
  static async open() {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(CONVERSATIONS, { keyPath: "id" });
    const store = new Store();
    store.#database = await done(request);
    // Another tab may have a newer version of the page, which needs to upgrade the database.
    store.#database.onversionchange = () => store.#database.close();
    return store;
  }

  /** Calls `changed(id)` when another tab has written or deleted a conversation. */
  listen(changed) {
    this.#channel.onmessage = ({ data }) => changed(data);
  }

  all() {
    return done(this.#records("readonly").getAll());
  }

  get(id) {
    return done(this.#records("readonly").get(id));
  }

  async put(conversation) {
    await done(this.#records("readwrite").put(conversation));
    this.#channel.postMessage(conversation.id);
  }

  async delete(id) {
    await done(this.#records("readwrite").delete(id));
    this.#channel.postMessage(id);
  }

  #records(mode) {
    return this.#database.transaction(CONVERSATIONS, mode).objectStore(CONVERSATIONS);
  }
}

/** Replacement for the database if the browser refuses one: conversations are lost when the tab is closed. */
export class Memory {
  #all = new Map();

  listen() {}

  async all() {
    return [...this.#all.values()];
  }

  async get(id) {
    return this.#all.get(id);
  }

  async put(conversation) {
    this.#all.set(conversation.id, conversation);
  }

  async delete(id) {
    this.#all.delete(id);
  }
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
