// Parses server-sent events from text that arrives in pieces. EventSource cannot send a POST, so the page
// reads the body of a fetch itself.

/** Takes a stream's text piece by piece and returns the complete events: `{event, data}`. */
export class EventReader {
  // Pieces of the incomplete line. Joined once, so that a long line in many pieces takes linear time.
  #pieces = [];
  #data = [];
  #event = "";
  // The last piece ended with a carriage return: a line feed at the start of the next one belongs to it.
  #returned = false;
  #started = false;

  push(text) {
    const events = [];
    let at = 0;
    if (!this.#started && text !== "") {
      this.#started = true;
      if (text[0] === "\uFEFF") at = 1;
    }
    if (this.#returned && text !== "") {
      this.#returned = false;
      if (text[at] === "\n") at += 1;
    }
    const end = /\r\n|\r|\n/g;
    end.lastIndex = at;
    for (let found = end.exec(text); found !== null; found = end.exec(text)) {
      this.#pieces.push(text.slice(at, found.index));
      at = end.lastIndex;
      this.#returned = found[0] === "\r" && at === text.length;
      const event = this.#line(this.#pieces.join(""));
      this.#pieces = [];
      if (event !== null) events.push(event);
    }
    if (at < text.length) this.#pieces.push(text.slice(at));
    return events;
  }

  #line(line) {
    if (line === "") {
      const event = { event: this.#event || "message", data: this.#data.join("\n") };
      const empty = this.#data.length === 0;
      this.#data = [];
      this.#event = "";
      return empty ? null : event;
    }
    const colon = line.indexOf(":");
    // A comment, which keeps proxies from closing the connection during a long prefill.
    if (colon === 0) return null;
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "data") this.#data.push(value);
    if (field === "event") this.#event = value;
    return null;
  }
}

/** The events of a body (`ReadableStream` of bytes), as they arrive. */
export async function* eventsOf(body) {
  const reader = body.getReader();
  // In streaming mode a character split between two chunks is decoded correctly.
  const decoder = new TextDecoder();
  const events = new EventReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* events.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
