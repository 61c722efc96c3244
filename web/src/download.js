// A model over the network, into a place that keeps it. What is there of an earlier attempt is gone on
// from, if the server says that the file is still the same.
//
// A place has `state()`: {size, tag, total}, what it holds, which version that is, and how long the whole is;
// `begin(tag, total)`, which empties it, `write(bytes)`, `finish()`, and `close()`.

import { SternaError } from "./errors.js";

/** Attempts to go on after the connection has broken, before somebody is told. */
const ATTEMPTS = 4;
const PAUSE_MS = 500;

/** What tells versions of a file apart, or null: nothing is gone on from then. */
function tagOf(headers) {
  const etag = headers.get("ETag");
  // A weak tag allows other bytes.
  return (etag?.startsWith("W/") ? null : etag) ?? headers.get("Last-Modified");
}

/** Bytes of the whole file, or null. */
function totalOf(response) {
  const [, total] = response.headers.get("Content-Range")?.match(/\/(\d+)$/) ?? [];
  // A server that compresses gives the length of what it sends.
  const plain = response.status === 200 && response.headers.get("Content-Encoding") === null;
  const length = total ?? (plain ? response.headers.get("Content-Length") : null);
  return length === null ? null : Number(length);
}

/**
 * Downloads `url` into `place`; `progress` is called with (loaded, total).
 *
 * @throws {SternaError} for what the server answers, and a connection that breaks again and again
 */
export async function download(url, place, { signal, progress }) {
  for (let attempt = 1; ; attempt += 1) {
    const before = place.state().size;
    try {
      await attemptOf(url, place, signal, progress);
      return;
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      if (error instanceof SternaError) throw error;
      if (error?.name === "QuotaExceededError") throw noRoom(place.state());
      const { size, total } = place.state();
      // What goes forward may go on for ever.
      if (size > before) attempt = 0;
      if (attempt >= ATTEMPTS) {
        const of = total === null ? "" : ` of ${megabytes(total)}`;
        throw new SternaError(
          `${url}: the connection broke at ${megabytes(size)}${of} (${error.message}); ` +
            "load it again to go on",
          { cause: error },
        );
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS * attempt));
    }
  }
}

async function attemptOf(url, place, signal, progress) {
  const { size, tag, total } = place.state();
  if (total !== null && size === total) return place.finish();
  const asked = size > 0 && tag !== null ? { Range: `bytes=${size}-` } : {};
  const response = await fetch(url, { headers: asked, signal });
  let at = size;
  const goesOn =
    response.status === 206 &&
    tagOf(response.headers) === tag &&
    response.headers.get("Content-Range")?.startsWith(`bytes ${size}-`);
  if (!goesOn) {
    if (response.status === 206 || response.status === 416) {
      // Another version by now: from its beginning.
      await response.body?.cancel();
      place.begin(null, null);
      return attemptOf(url, place, signal, progress);
    }
    if (!response.ok) throw new SternaError(`${url}: the server answered ${response.status}`);
    place.begin(tagOf(response.headers), totalOf(response));
    at = 0;
  }
  const whole = place.state().total;
  progress(at, whole);
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      place.write(value);
      at += value.length;
      progress(at, whole);
    }
  } catch (error) {
    await reader.cancel().catch(() => {});
    throw error;
  }
  if (whole !== null && at !== whole) throw new Error(`it ended at ${at} of ${whole} bytes`);
  return place.finish();
}

/** Says that a model does not fit where it should be kept. */
export function noRoom({ size, total }) {
  const of = total === null ? "" : ` of ${megabytes(total)}`;
  return new SternaError(
    `there is no room to keep the model: ${megabytes(size)}${of} fit; models.remove() frees some, and ` +
      "store: false keeps it in memory alone",
  );
}

/** Bytes for people. */
export const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

/** A place in memory. */
export class InMemory {
  #parts = [];
  #state = { size: 0, tag: null, total: null };

  state() {
    return this.#state;
  }

  begin(tag, total) {
    this.#parts = [];
    this.#state = { size: 0, tag, total };
  }

  write(bytes) {
    this.#parts.push(bytes);
    this.#state.size += bytes.length;
  }

  finish() {
    this.#state.total = this.#state.size;
  }

  blob() {
    return new Blob(this.#parts);
  }
}
