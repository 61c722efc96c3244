// A plain static host, without special headers. It records requests, and fails on demand.

import { createReadStream, existsSync, readFileSync, statSync } from "node:fs";
import http from "node:http";
import { join, normalize } from "node:path";

const TYPES = {
  html: "text/html; charset=utf-8",
  js: "text/javascript",
  mjs: "text/javascript",
  css: "text/css",
  svg: "image/svg+xml",
  wasm: "application/wasm",
};

/**
 * Serves `folder`, and each of `models`, {name: path}, as /models/name, with an ETag and ranges. `requests`
 * are the requested paths, with their range. After `holdAt` bytes of a model its next connection stalls,
 * once, until `cut()` ends it. While it `isGone`, no request is answered. `appended` is text to append to
 * files, {path: text}.
 */
export async function host(folder, models = {}, appended = {}) {
  const state = { requests: [], holdAt: null, isGone: false, tag: '"one"' };
  let held = null;
  const cut = () => held.destroy();
  const server = http.createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    const { range } = request.headers;
    if (state.isGone) return response.destroy();
    state.requests.push(range === undefined ? path : `${path} ${range}`);
    const model = path.startsWith("/models/") ? models[path.slice("/models/".length)] : undefined;
    const file = model ?? join(folder, normalize(path.endsWith("/") ? `${path}index.html` : path));
    if (!existsSync(file) || statSync(file).isDirectory()) return response.writeHead(404).end();
    const headers = {
      "Content-Type": TYPES[file.split(".").at(-1)] ?? "application/octet-stream",
      // The browser's cache would hide requests.
      "Cache-Control": "no-store",
      ETag: state.tag,
    };
    if (path in appended)
      return response.writeHead(200, headers).end(readFileSync(file, "utf8") + appended[path]);
    const { size } = statSync(file);
    const start = Number(range?.match(/^bytes=(\d+)-$/)?.[1] ?? 0);
    headers["Content-Length"] = size - start;
    if (range !== undefined) headers["Content-Range"] = `bytes ${start}-${size - 1}/${size}`;
    response.writeHead(range === undefined ? 200 : 206, headers);
    if (model === undefined || state.holdAt === null)
      return createReadStream(file, { start }).pipe(response);
    const end = state.holdAt - 1;
    state.holdAt = null;
    held = response;
    return createReadStream(file, { start, end }).pipe(response, { end: false });
  });
  // Browsers may reuse an idle connection while it is being closed.
  server.keepAliveTimeout = 0;
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return Object.assign(state, { url: `http://127.0.0.1:${port}/`, close, cut });
}
