// What published clients for Node make of a running server: node clients.mjs http://127.0.0.1:8080
//
// scripts/serve-clients installs them as the lock file says. The clients check the form of answers
// themselves; here their results are compared with each other.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";

const base = `${process.argv[2]}/v1`;
const messages = [{ role: "user", content: "Tell me a story." }];

const client = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0 });
const ask = { model: "any", messages, max_tokens: 8, temperature: 0 };
const plain = await client.chat.completions.create(ask);
const text = plain.choices[0].message.content;
let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) {
  streamed += chunk.choices[0]?.delta.content ?? "";
}
assert.equal(streamed, text);
const final = await client.chat.completions.stream(ask).finalChatCompletion();
assert.equal(final.choices[0].message.content, text);
const asked = { model: "any", input: "Tell me a story.", max_output_tokens: 8 };
const response = await client.responses.create(asked);
assert.ok(response.output_text.length > 0);
await assert.rejects(client.chat.completions.create({ ...ask, messages: [] }), OpenAI.BadRequestError);
assert.ok((await client.models.list()).data.length > 0);

const sterna = createOpenAICompatible({ name: "sterna", baseURL: base, includeUsage: true });
const prompt = { model: sterna("any"), messages, maxOutputTokens: 8, temperature: 0, maxRetries: 0 };
const generated = await generateText(prompt);
assert.equal(generated.text, text);
assert.equal(generated.usage.outputTokens, 8);
let pieces = "";
for await (const piece of streamText(prompt).textStream) pieces += piece;
assert.equal(pieces, text);

console.log("openai and ai for Node agree with the server");
