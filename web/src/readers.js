// A model's file as the engine reads it: {size, read(at, n)}, which gives a Uint8Array or a promise of one.
// A promise wants a module whose stack can be suspended; elsewhere the whole file is read first.

import { canSuspend } from "./device.js";

/** Bytes in memory. */
export const ofBytes = (bytes) => ({ size: bytes.length, read: (at, n) => bytes.subarray(at, at + n) });

/** A file of the browser or of its user, in a worker, where it can be read at once. */
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

/** A reader that may answer by promises, as one that the engine can use here. */
export async function settled({ size, read }) {
  if (canSuspend()) return { size, read };
  const bytes = new Uint8Array(size);
  const piece = 16 << 20;
  for (let at = 0; at < size; at += piece) bytes.set(await read(at, Math.min(piece, size - at)), at);
  return ofBytes(bytes);
}

/** A reader that throws as soon as its signal says so. */
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

/** Whether a value is bytes: an ArrayBuffer, or a view of one. */
export const isBytes = (value) => value instanceof ArrayBuffer || ArrayBuffer.isView(value);

/** Such a value as a Uint8Array. */
export const bytesOf = (value) =>
  value instanceof ArrayBuffer
    ? new Uint8Array(value)
    : new Uint8Array(value.buffer, value.byteOffset, value.byteLength);

/** Whether a value is a reader of the caller's. */
export const isReader = (value) => typeof value?.read === "function" && Number.isFinite(value.size);

/** What a source may be, for errors. */
export const SOURCES =
  "a URL, a File or Blob, an ArrayBuffer or Uint8Array, {size, read(at, n)}, or a list of these";

/** What `onProgress` is told. */
export const progressOf = (phase, loaded, total) => ({
  phase,
  loaded,
  total,
  fraction: total > 0 ? Math.min(loaded / total, 1) : null,
});
