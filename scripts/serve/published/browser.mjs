// The npm packages openai and @anthropic-ai/sdk in Chromium, from a page of another origin:
// node browser.mjs http://127.0.0.1:8080 http://localhost:3000 CHROMIUM
// The server needs the second address in `--cors-origins`; this script listens there.
import assert from "node:assert/strict";
import http from "node:http";
import { build } from "esbuild";
import { chromium } from "playwright-core";

const [base, origin, executablePath] = process.argv.slice(2);
const contents = `
  export { default as OpenAI } from "openai";
  export { default as Anthropic } from "@anthropic-ai/sdk";
`;
const bundle = await build({
  stdin: { contents, resolveDir: import.meta.dirname },
  bundle: true,
  format: "esm",
  platform: "browser",
  write: false,
  logLevel: "error",
});
const files = {
  "/": ["text/html", "<!doctype html><title>clients</title>"],
  "/bundle.js": ["text/javascript", bundle.outputFiles[0].text],
};

/** Runs both clients, in the browser. */
async function ask(base) {
  const { OpenAI, Anthropic } = await import("/bundle.js");
  const messages = [{ role: "user", content: "What is two plus three?" }];
  const common = { model: "any", temperature: 0, max_tokens: 50 };
  const sum = [{ role: "user", content: "What is 123 plus 456?" }];
  const number = { type: "number" };
  const parameters = { type: "object", properties: { a: number, b: number }, required: ["a", "b"] };
  const add = { name: "add", description: "Adds two numbers." };

  const options = { apiKey: "none", maxRetries: 0, dangerouslyAllowBrowser: true };
  const openai = new OpenAI({ ...options, baseURL: `${base}/v1` });
  const create = (extra) => openai.chat.completions.create({ ...common, messages, ...extra });
  const said = { openai: {}, anthropic: {} };
  said.openai.plain = (await create({})).choices[0].message.content;
  said.openai.streamed = "";
  for await (const chunk of await create({ stream: true }))
    said.openai.streamed += chunk.choices[0]?.delta.content ?? "";
  const tools = [{ type: "function", function: { ...add, parameters } }];
  const [call] = (await create({ messages: sum, tools })).choices[0].message.tool_calls;
  said.openai.called = [call.function.name, JSON.parse(call.function.arguments)];
  said.openai.refused = await create({ messages: [] }).catch((error) => error.status);

  const anthropic = new Anthropic({ ...options, baseURL: base });
  said.anthropic.plain = (await anthropic.messages.create({ ...common, messages })).content[0].text;
  said.anthropic.streamed = await anthropic.messages.stream({ ...common, messages }).finalText();
  const tool = { ...add, input_schema: parameters };
  const asked = await anthropic.messages.create({ ...common, messages: sum, tools: [tool] });
  const [use] = asked.content;
  said.anthropic.called = [use.name, use.input];
  said.anthropic.refused = await anthropic.messages
    .create({ ...common, messages: [] })
    .catch((error) => error.status);
  return said;
}

const server = http.createServer((request, response) => {
  const [type, body] = files[request.url] ?? ["text/plain", ""];
  response.writeHead(200, { "content-type": type }).end(body);
});
await new Promise((resolve) => server.listen(new URL(origin).port, "localhost", resolve));
const browser = await chromium.launch({ executablePath, chromiumSandbox: false, args: ["--disable-gpu"] });
try {
  const page = await browser.newPage();
  const seen = [];
  page.on("console", (message) => seen.push(message.text()));
  await page.goto(`${origin}/`);
  const answer = "Two plus three is five.";
  const each = { plain: answer, streamed: answer, called: ["add", { a: 123, b: 456 }], refused: 400 };
  const said = await page.evaluate(ask, base).catch((error) => assert.fail(`${error}\n${seen.join("\n")}`));
  assert.deepEqual(said, { openai: each, anthropic: each });
} finally {
  await browser.close();
  server.close();
}
console.log("openai and @anthropic-ai/sdk agree with the server from a page of another origin");
