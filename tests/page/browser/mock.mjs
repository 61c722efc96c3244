// A server with the endpoints that the page uses, in llama-server's format. The test specifies its replies:
// a prompt that is a key of `replies` gets that reply, or the rest of it if the last message is a prefix of
// it. Any other prompt is echoed.

import { readFile } from "node:fs/promises";
import http from "node:http";

const PAGE = new URL("../../../src/serve/page/", import.meta.url);

/** Files that the program serves, read from its own list, so that a missing file is missing here, too. */
async function assets() {
  const source = await readFile(new URL("mod.rs", PAGE), "utf8");
  const types = new Map();
  for (const [, name, type] of source.matchAll(/const ([A-Z]+): &str = "(.*)";/g)) types.set(name, type);
  const files = new Map();
  for (const [, path, type, name] of source.matchAll(
    /asset\("(.*?)", (.*?), include_bytes!\("(.*?)"\)\)/g,
  )) {
    const body = await readFile(new URL(name, PAGE));
    files.set(path, { "Content-Type": types.get(type) ?? type.slice(1, -1), body });
  }
  const [, parts] = /CONTENT_SECURITY_POLICY: &str = concat!\((.*?)\n\);/s.exec(source);
  const policy = [...parts.matchAll(/"(.*?)"/g)].map(([, part]) => part).join("");
  return { files, policy };
}

/**
 * Listens on a free port of 127.0.0.1. `options`: template (chat), nCtx, pieceMs (between pieces), key,
 * status (of everything except the page, until it is set back to 200), models, loaded (names of loaded
 * models; null for all), loadMs (time to load another one), broken (a model that cannot be loaded), replies,
 * vision (true if the model sees images).
 */
export async function mock(options = {}) {
  const { files, policy } = await assets();
  const server = {
    template: "{{ messages }}",
    nCtx: 4096,
    pieceMs: 4,
    key: null,
    status: 200,
    models: ["stand-in"],
    loaded: null,
    loadMs: 0,
    broken: null,
    replies: {},
    vision: false,
    requests: [],
    aborted: 0,
    ...options,
  };

  const json = (response, status, value, headers = {}) => {
    response.writeHead(status, { "Content-Type": "application/json", ...headers });
    response.end(JSON.stringify(value));
  };
  const refuse = (response, status, message, headers, details) => {
    json(response, status, { error: { code: status, message, type: "error", ...details } }, headers);
  };

  async function answer(request, response) {
    const { pathname, searchParams } = new URL(request.url, "http://127.0.0.1");
    const file = files.get(pathname);
    if (file !== undefined) {
      const { body, ...headers } = file;
      response.writeHead(200, {
        ...headers,
        "Content-Security-Policy": policy,
        "Cache-Control": "no-cache",
      });
      return response.end(body);
    }
    if (server.status !== 200)
      return refuse(response, server.status, "Loading model", { "Retry-After": "3" });
    const authorised = server.key === null || request.headers.authorization === `Bearer ${server.key}`;
    if (!authorised) return refuse(response, 401, "Invalid API Key");
    switch (pathname) {
      case "/props": {
        const name = searchParams.get("model") ?? server.models[0];
        if (!server.models.includes(name)) return refuse(response, 404, `no model ${name}`);
        if (server.loaded !== null && !server.loaded.includes(name)) {
          await pause(server.loadMs);
          if (name === server.broken) return refuse(response, 500, "not a GGUF file");
          server.loaded.push(name);
        }
        return json(response, 200, props(name));
      }
      case "/v1/models":
        return json(response, 200, { object: "list", data: server.models.map(entry) });
      case "/v1/chat/completions":
      case "/completion": {
        let text = "";
        for await (const chunk of request.setEncoding("utf8")) text += chunk;
        return generate(JSON.parse(text), pathname === "/completion", response);
      }
      default:
        return refuse(response, 404, `no ${pathname}`);
    }
  }

  function entry(id) {
    const status = { value: server.loaded?.includes(id) ? "loaded" : "unloaded" };
    return { id, object: "model", ...(server.loaded !== null && { status }) };
  }

  function props(name) {
    const params = {
      temperature: 0.800000011920929,
      top_k: 40,
      top_p: 0.949999988079071,
      min_p: 0.05,
      n_predict: -1,
      repeat_penalty: 1,
      repeat_last_n: 64,
      presence_penalty: 0,
      frequency_penalty: 0,
      seed: 4294967295,
    };
    return {
      default_generation_settings: { n_ctx: server.nCtx, params },
      total_slots: 1,
      model_alias: name,
      chat_template: server.template,
      modalities: { vision: server.vision, audio: false },
      build_info: "b1-mock",
    };
  }

  async function generate(body, native, response) {
    server.requests.push(body);
    const asked = native ? null : body.messages.findLast(({ role }) => role === "user");
    const prompt = native ? body.prompt : textOf(asked.content);
    const tries = server.requests.filter((other) => JSON.stringify(other) === JSON.stringify(body)).length;
    const reply = server.replies[prompt] ?? { text: ` You said "${prompt}", in try ${tries}.` };
    if (reply.status) return refuse(response, reply.status, reply.message, reply.headers, reply.details);
    response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-cache" });
    let open = true;
    response.on("close", () => {
      if (open) server.aborted += 1;
      open = false;
    });
    const send = (value) => open && response.write(`data: ${JSON.stringify(value)}\n\n`);
    const delta = (delta, rest = {}) =>
      send({
        object: "chat.completion.chunk",
        choices: [{ index: 0, delta, finish_reason: null }],
        ...rest,
      });
    response.write(":\n\n");
    if (!native) delta({ role: "assistant", content: null });
    for (const word of pieces(reply.reasoning ?? "")) {
      delta({ reasoning_content: word });
      await pause(server.pieceMs);
    }
    const words = pieces(rest(reply.text ?? "", native ? null : body.messages.at(-1)));
    const limit = (native ? body.n_predict : body.max_tokens) ?? -1;
    const most = limit >= 0 ? Math.min(limit, words.length) : words.length;
    for (let at = 0; at < most && open; at += 1) {
      const timings = timingsOf(prompt, at + 1);
      if (native) send({ index: 0, content: words[at], tokens: [], stop: false, timings });
      else delta({ content: words[at] }, { timings });
      await pause(reply.pieceMs ?? server.pieceMs);
      if (at === reply.dropAfter) return response.destroy();
    }
    const finish = most < words.length ? "length" : (reply.finish ?? "stop");
    const timings = timingsOf(prompt, most);
    if (native) {
      const stop = finish === "length" ? "limit" : "eos";
      send({ index: 0, content: "", stop: true, stop_type: stop, timings });
    } else {
      send({ choices: [{ index: 0, delta: {}, finish_reason: finish }] });
      send({ choices: [], usage: {}, timings });
      if (open) response.write("data: [DONE]\n\n");
    }
    open = false;
    response.end();
  }

  const http1 = http.createServer((request, response) => {
    answer(request, response).catch((error) => response.destroy(error));
  });
  await new Promise((resolve) => http1.listen(0, "127.0.0.1", resolve));
  // A failing test does not call `close`, but must end anyway.
  http1.unref();
  server.url = `http://127.0.0.1:${http1.address().port}/`;
  server.close = () => {
    http1.closeAllConnections();
    http1.close();
  };
  return server;
}

/** The rest of a reply, if the last message is a prefix of it. */
function rest(text, last) {
  return last?.role === "assistant" && text.startsWith(last.content) ? text.slice(last.content.length) : text;
}

/** The text of a message, whose content may be parts. */
function textOf(content) {
  if (typeof content === "string") return content;
  return content
    .filter(({ type }) => type === "text")
    .map(({ text }) => text)
    .join("");
}

/** Splits text like a tokenizer: words with the space before them. */
const pieces = (text) => text.match(/\s*\S+|\s+$/g) ?? [];
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function timingsOf(prompt, predicted) {
  const prompts = Math.ceil(prompt.length / 4);
  return {
    cache_n: 0,
    prompt_n: prompts,
    prompt_ms: 10,
    prompt_per_second: 100 * prompts,
    predicted_n: predicted,
    predicted_ms: 24 * predicted,
    predicted_per_second: 41.237,
  };
}
