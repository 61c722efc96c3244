// A static host as any other: no special headers. It counts what is asked, and fails where a test wants it
// to.

import { createReadStream, existsSync, statSync } from "node:fs";
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
 * Serves `folder`, and of `models`, {name: path}, each as /models/name, with an ETag and ranges. `requests`
 * are the paths that were asked for, with their range. `breakAt` bytes of a model end its next connection,
 * once.
 */
export async function host(folder, models = {}) {
  const state = { requests: [], breakAt: null, tag: '"one"' };
  const server = http.createServer((request, response) => {
    const path = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    const { range } = request.headers;
    state.requests.push(range === undefined ? path : `${path} ${range}`);
    const model = path.startsWith("/models/") ? models[path.slice("/models/".length)] : undefined;
    const file = model ?? join(folder, normalize(path.endsWith("/") ? `${path}index.html` : path));
    if (!existsSync(file) || statSync(file).isDirectory()) return response.writeHead(404).end();
    const { size } = statSync(file);
    const headers = {
      "Content-Type": TYPES[file.split(".").at(-1)] ?? "application/octet-stream",
      // Its own cache would hide what is asked.
      "Cache-Control": "no-store",
      ETag: state.tag,
    };
    const start = Number(range?.match(/^bytes=(\d+)-$/)?.[1] ?? 0);
    headers["Content-Length"] = size - start;
    if (range !== undefined) headers["Content-Range"] = `bytes ${start}-${size - 1}/${size}`;
    response.writeHead(range === undefined ? 200 : 206, headers);
    if (model === undefined || state.breakAt === null)
      return createReadStream(file, { start }).pipe(response);
    const end = state.breakAt - 1;
    state.breakAt = null;
    const stream = createReadStream(file, { start, end });
    return stream
      .on("data", (bytes) => response.write(bytes))
      .on("end", () => setTimeout(() => response.destroy(), 200));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  const close = () => {
    server.closeAllConnections();
    server.close();
  };
  return Object.assign(state, { url: `http://127.0.0.1:${port}/`, close });
}
