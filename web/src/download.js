// Downloads a model into a place that stores it. An earlier attempt is resumed if the server confirms that
// the file has not changed.
//
// A place has `state()`: {size, tag, total}, the stored bytes, their version, and the size of the whole file;
// `begin(tag, total)`, which empties it; `write(bytes)`; `finish()`; and `close()`.

import { SternaError } from "./errors.js";

/** Attempts to resume after the connection has failed, before an error is thrown. */
const ATTEMPTS = 4;
const PAUSE_MS = 500;

/** The version of the file, or null, in which case the download cannot be resumed. */
function tagOf(headers) {
  const etag = headers.get("ETag");
  // A weak tag may be shared by files with different bytes.
  return (etag?.startsWith("W/") ? null : etag) ?? headers.get("Last-Modified");
}

/** Size of the whole file in bytes, or null. */
function totalOf(response) {
  const [, total] = response.headers.get("Content-Range")?.match(/\/(\d+)$/) ?? [];
  // A server that compresses sends the compressed length.
  const plain = response.status === 200 && response.headers.get("Content-Encoding") === null;
  const length = total ?? (plain ? response.headers.get("Content-Length") : null);
  return length === null ? null : Number(length);
}

/**
 * Downloads `url` into `place`; `progress` is called with (loaded, total).
 *
 * @throws {SternaError} for error responses, and for a connection that fails repeatedly
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
      // As long as there is progress, keep retrying.
      if (size > before) attempt = 0;
      if (attempt >= ATTEMPTS) {
        const of = total === null ? "" : ` of ${megabytes(total)}`;
        throw new SternaError(
          `${url}: the connection failed at ${megabytes(size)}${of} (${error.message}); ` +
            "load it again to resume",
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
      // The file has changed: download it from the start.
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

/** The error for a model that does not fit in storage. */
export function noRoom({ size, total }) {
  const of = total === null ? "" : ` of ${megabytes(total)}`;
  return new SternaError(
    `there is no room to store the model: ${megabytes(size)}${of} fit; models.remove() frees some, and ` +
      "store: false keeps it only in memory",
  );
}

/** A size in MB as text. */
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
