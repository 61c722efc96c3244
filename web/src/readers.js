// A model file as the engine reads it: {size, read(at, n)}, which returns a Uint8Array or a promise of one. A
// promise requires that the module's stack can be suspended; otherwise the whole file is read first.

import { canSuspend } from "./device.js";

/** Bytes in memory. */
export const ofBytes = (bytes) => ({ size: bytes.length, read: (at, n) => bytes.subarray(at, at + n) });

/** A file of the browser or the user, in a worker, where it can be read synchronously. */
export function ofBlobAtOnce(blob) {
  const reader = new FileReaderSync();
  const read = (at, n) => new Uint8Array(reader.readAsArrayBuffer(blob.slice(at, at + n)));
  return { size: blob.size, read };
}

/** A blob. */
export const ofBlob = (blob) =>
  settled({
    size: blob.size,
    read: async (at, n) => new Uint8Array(await blob.slice(at, at + n).arrayBuffer()),
  });

/** Converts a reader that may return promises to one that the engine can use here. */
export async function settled({ size, read }) {
  if (canSuspend()) return { size, read };
  const bytes = new Uint8Array(size);
  const piece = 16 << 20;
  for (let at = 0; at < size; at += piece) bytes.set(await read(at, Math.min(piece, size - at)), at);
  return ofBytes(bytes);
}

/** A reader that throws once its signal is aborted. */
export function abortable({ size, read }, signal) {
  if (signal === undefined) return { size, read };
  return {
    size,
    read(at, n) {
      signal.throwIfAborted();
      return read(at, n);
    },
  };
}

/** True if a value is bytes: an ArrayBuffer, or a view of one. */
export const isBytes = (value) => value instanceof ArrayBuffer || ArrayBuffer.isView(value);

/** Such a value as a Uint8Array. */
export const bytesOf = (value) =>
  value instanceof ArrayBuffer
    ? new Uint8Array(value)
    : new Uint8Array(value.buffer, value.byteOffset, value.byteLength);

/** True if a value is a custom reader. */
export const isReader = (value) => typeof value?.read === "function" && Number.isFinite(value.size);

/** Description of valid sources, for errors. */
export const SOURCES =
  "a URL, a File or Blob, an ArrayBuffer or Uint8Array, {size, read(at, n)}, or a list of these";

/** The argument of `onProgress`. */
export const progressOf = (phase, loaded, total) => ({
  phase,
  loaded,
  total,
  fraction: total > 0 ? Math.min(loaded / total, 1) : null,
});
