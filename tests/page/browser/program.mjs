// The program itself as the test server, with its built-in demo model.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import http from "node:http";
import net from "node:net";

/** Starts `sterna serve` on a free port. `options`: key. */
export async function program(path, { key = null } = {}) {
  const port = await freePort();
  const args = ["serve", "--host", "127.0.0.1", "--port", String(port)];
  if (key !== null) args.push("--api-key", key);
  const child = spawn(path, args, { stdio: ["ignore", "ignore", "pipe"] });
  let log = "";
  child.stderr.setEncoding("utf8").on("data", (text) => (log += text));
  let ended = null;
  child.on("exit", (code, signal) => (ended = code ?? signal));
  const url = `http://127.0.0.1:${port}/`;
  for (let tries = 0; (await statusOf(`${url}health`)) !== 200; tries += 1) {
    assert.equal(ended, null, `the server ended with ${ended}: ${log}`);
    assert.ok(tries < 600, `the server was not ready within a minute: ${log}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  return { url, close: () => child.kill("SIGTERM") };
}

function statusOf(url) {
  return new Promise((resolve) => {
    http.get(url, (response) => resolve(response.resume().statusCode)).on("error", () => resolve(0));
  });
}

function freePort() {
  return new Promise((resolve) => {
    const server = net.createServer().listen(0, "127.0.0.1", () => {
      const { port } = server.address();
      server.close(() => resolve(port));
    });
  });
}
