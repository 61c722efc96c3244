// Codex CLI against a running server: node codex.mjs http://127.0.0.1:8080
//
// It sends its own tools, instructions and schema, and the answer must match that schema. Its home is a
// temporary folder, and an unreachable proxy blocks everything but this machine.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { fileURLToPath } from "node:url";

const home = mkdtempSync(path.join(tmpdir(), "codex-"));
const places = ["here", "there"];
const where = { type: "string", enum: places };
const schema = { type: "object", properties: { where }, required: ["where"], additionalProperties: false };
const config = `
model = "any"
model_provider = "sterna"
model_context_window = 32768
web_search = "disabled"
approval_policy = "never"
sandbox_mode = "read-only"
check_for_update_on_startup = false
[features]
# A tool fewer for the demo model, whose calls often do not end.
goals = false
[analytics]
enabled = false
[model_providers.sterna]
name = "sterna"
base_url = "${process.argv[2]}/v1"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
`;
try {
  writeFileSync(path.join(home, "config.toml"), config + (process.env.CODEX_CONFIG ?? ""));
  writeFileSync(path.join(home, "schema.json"), JSON.stringify(schema));
  const program = fileURLToPath(import.meta.resolve("@openai/codex/bin/codex.js"));
  const proxy = "http://127.0.0.1:9";
  const env = { PATH: process.env.PATH, HOME: home, CODEX_HOME: home, no_proxy: "127.0.0.1" };
  const args = ["exec", "--json", "--skip-git-repo-check", "--output-schema", path.join(home, "schema.json")];
  const ended = spawnSync(process.execPath, [program, ...args, "Where is the owl?"], {
    cwd: home,
    env: { ...env, http_proxy: proxy, https_proxy: proxy },
    stdio: ["ignore", "pipe", "pipe"],
    encoding: "utf8",
    timeout: 180_000,
  });
  const said = `${ended.stdout}\n${ended.stderr}`;
  assert.equal(ended.status, 0, said);
  const events = ended.stdout.trim().split("\n").map((line) => JSON.parse(line));
  const messages = events.filter((event) => event.item?.type === "agent_message");
  const answer = JSON.parse(messages.at(-1).item.text);
  assert.ok(Object.keys(answer).length === 1 && places.includes(answer.where), said);
  const done = events.find((event) => event.type === "turn.completed");
  // The instructions and tools of Codex are thousands of tokens.
  assert.ok(done.usage.input_tokens > 1000 && done.usage.output_tokens > 0, said);
} finally {
  rmSync(home, { recursive: true, force: true });
}
console.log("Codex agrees with the server");
