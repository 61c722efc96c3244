// Conversations in the browser's own database. Nothing of them is kept on the server.
//
// All are read at the start, since the list searches their text. Each change writes one record whole.

const NAME = "sterna";
const CONVERSATIONS = "conversations";

/** The database, and a channel that tells other tabs of this browser what has changed. */
export class Store {
  #database;
  #channel = new BroadcastChannel(NAME);

  /** Opens the database. Throws where the browser refuses one, as some do in private windows. */
  static async open() {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(CONVERSATIONS, { keyPath: "id" });
    const store = new Store();
    store.#database = await done(request);
    // Another tab may have a newer page, whose database this one must not hold up.
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

/** Takes the place of the database where the browser refuses one: what is written ends with the tab. */
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
