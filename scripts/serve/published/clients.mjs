// Tests published clients for Node against a running server, and against one for embeddings:
// node clients.mjs http://127.0.0.1:8080 http://127.0.0.1:8081
//
// scripts/serve/clients installs them from the lock file. The clients check the form of answers themselves;
// this compares their results with each other.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";

const base = `${process.argv[2]}/v1`;
const messages = [{ role: "user", content: "Tell me a story." }];
// The demo model calls this tool for large sums, and answers with its result.
const sum = [{ role: "user", content: "What is 123 plus 456?" }];
const number = { type: "number" };
const parameters = { type: "object", properties: { a: number, b: number }, required: ["a", "b"] };
const add = { name: "add", description: "Adds two numbers." };
const places = ["here", "there"];
const where = { type: "string", enum: places };
const schema = { type: "object", properties: { where }, required: ["where"], additionalProperties: false };

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

// The format of results that the model was trained on.
const execute = async ({ a, b }) => `{"sum": ${a + b}}`;
const adder = tool({ description: add.description, inputSchema: jsonSchema(parameters), execute });
const tooled = { messages: sum, maxOutputTokens: 80, tools: { add: adder }, stopWhen: stepCountIs(2) };
const added = await generateText({ ...prompt, ...tooled });
assert.equal(added.text, "123 plus 456 is 579.");
const output = Output.object({ schema: jsonSchema(schema) });
const structured = createOpenAICompatible({ name: "sterna", baseURL: base, supportsStructuredOutputs: true });
const object = await generateText({ ...prompt, model: structured("any"), maxOutputTokens: 80, output });
assert.ok(places.includes(object.output.where));

const ollama = new Ollama({ host: process.argv[2] });
const options = { temperature: 0, num_predict: 8 };
assert.equal((await ollama.chat({ model: "any", messages, options })).message.content, text);
let parts = "";
for await (const part of await ollama.chat({ model: "any", messages, options, stream: true })) {
  parts += part.message.content;
}
assert.equal(parts, text);
const functions = [{ type: "function", function: { ...add, parameters } }];
const greedy = { temperature: 0 };
const called = await ollama.chat({ model: "any", messages: sum, options: greedy, tools: functions });
assert.deepEqual(called.message.tool_calls.map((call) => call.function.arguments), [{ a: 123, b: 456 }]);
const shaped = await ollama.chat({ model: "any", messages, format: schema });
assert.ok(places.includes(JSON.parse(shaped.message.content).where));

const anthropic = new Anthropic({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
assert.equal((await anthropic.messages.create(ask)).content[0].text, text);
assert.equal(await anthropic.messages.stream(ask).finalText(), text);
const tools = [{ ...add, input_schema: parameters }];
const uses = (await anthropic.messages.create({ ...ask, messages: sum, max_tokens: 80, tools })).content;
assert.deepEqual(uses.map((use) => use.input), [{ a: 123, b: 456 }]);

// The first client requests base64, the second JSON numbers.
const values = ["a small owl", "two\nlines"];
const embeds = process.argv[3];
const encoder = new OpenAI({ baseURL: `${embeds}/v1`, apiKey: "none", maxRetries: 0 });
const embedded = await encoder.embeddings.create({ model: "any", input: values });
const vectors = embedded.data.map((entry) => entry.embedding);
const embedder = createOpenAICompatible({ name: "sterna", baseURL: `${embeds}/v1` }).embeddingModel("any");
const ofAi = (await embedMany({ model: embedder, values, maxRetries: 0 })).embeddings;
const ofOllama = (await new Ollama({ host: embeds }).embed({ model: "any", input: values })).embeddings;
for (const others of [ofAi, ofOllama]) {
  assert.deepEqual(others.map((vector) => vector.length), vectors.map((vector) => vector.length));
  const near = (x, text, at) => assert.ok(Math.abs(x - vectors[text][at]) < 1e-5);
  others.forEach((vector, text) => vector.forEach((x, at) => near(x, text, at)));
}

console.log("openai, ai, ollama and @anthropic-ai/sdk for Node agree with the server");
