// Runs in Node: checks what the package promises besides text. Any failure is an exception.

import assert from "node:assert/strict";
import process from "node:process";

import { SternaCrash, SternaError, demoModel, load } from "sterna";

const options = { nCtx: 256, backend: "cpu" };
const model = await load(demoModel, options);

// Errors name the cause, and the model can still be used.
const fails = (input, how, words) =>
  assert.rejects(model.generate(input, how).result, (error) => {
    assert.ok(error instanceof SternaError && words.test(error.message), `${error.name}: ${error.message}`);
    return true;
  });
await fails("Once", { topP: 2 }, /^topP: want 0 to 1, got 2/);
await fails("Once", { tempreture: 0 }, /unknown options: tempreture/);
await fails("Once", { json: true }, /structured: true/);
const picture = { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } };
await fails([{ role: "user", content: [picture] }], {}, /messages\[0\]\.content: want a text.*see no images/);
await fails([4_000_000], {}, /not in the vocabulary of 4/);
await fails("", { maxTokens: 1 }, /no tokens/).catch(() => {});
await assert.rejects(load(new Uint8Array([1, 2, 3])), SternaError);
await assert.rejects(load(demoModel, { ...options, cacheTypeK: "f17" }), /: cacheTypeK: want one of f16/);
await assert.rejects(load("nowhere.gguf"), /nowhere\.gguf/);
await assert.rejects(load({}), /want a URL/);

// The same seed, the same text; stop strings; two calls at once wait for each other.
const seeded = () => model.generate("The king", { seed: 7, maxTokens: 24 }).result;
const [one, two] = await Promise.all([seeded(), seeded()]);
assert.equal(one.text, two.text);
assert.equal(one.seed, 7);
const stopped = await model.generate("Once upon a time", { temperature: 0, stop: " the" }).result;
assert.equal(stopped.stopReason, "stop");
assert.ok(!stopped.text.includes(" the"), stopped.text);

// Stopped by a call, by a signal, and by leaving the loop.
const byHand = model.generate("Once", { ignoreEos: true });
for await (const piece of byHand) {
  assert.ok(piece.length > 0);
  byHand.stop();
}
assert.equal((await byHand.result).stopReason, "cancelled");
const signal = AbortSignal.timeout(50);
await assert.rejects(model.generate("Once", { signal, ignoreEos: true }).result, { name: "TimeoutError" });
await assert.rejects(load(demoModel, { signal: AbortSignal.abort() }), { name: "AbortError" });

// A chat stores the messages, reuses the cache, and drops the oldest turns.
const chat = model.chat({ system: "Be brief." });
for (let turn = 0; turn < 12; turn += 1) {
  const { forgotten } = await chat.send("Tell me of the king.", { maxTokens: 16, ignoreEos: true }).result;
  assert.ok(turn < 10 || forgotten > 0 || chat.messages.length < 25, `turn ${turn}`);
}
assert.equal(chat.messages[0].role, "system");
assert.ok(chat.messages.length < 25 && chat.used <= 256);

// A list of readers, and a reader that returns promises.
const bytes = new Uint8Array(await (await import("node:fs/promises")).readFile(demoModel));
const read = async (at, n) => bytes.subarray(at, at + n);
const again = await load([{ size: bytes.length, read }], options);
const greedy = { temperature: 0, maxTokens: 16 };
const [ours, theirs] = await Promise.all(
  [model, again].map((which) => which.generate("Once", greedy).result),
);
assert.deepEqual(ours.tokens, theirs.tokens);
await again.dispose();
await assert.rejects(again.generate("Once").result, /disposed/);

// Structured text.
const structured = await load(demoModel, { ...options, structured: true });
const properties = { n: { enum: [1, 2] } };
const schema = { type: "object", properties, required: ["n"], additionalProperties: false };
const { text } = await structured.generate("JSON:", { json: schema, maxTokens: 60, seed: 1 }).result;
assert.ok([1, 2].includes(JSON.parse(text).n), text);
const { text: choice } = await structured.generate("Yes?", { choices: ["yes", "no"] }).result;
assert.ok(["yes", "no"].includes(choice), choice);
await structured.dispose();

// After a crash of the module the model is lost, and another one can be loaded.
const { Model } = await import(new URL("engine.js", import.meta.resolve("sterna")));
const { step } = Model.prototype;
Model.prototype.step = () => {
  throw new WebAssembly.RuntimeError("unreachable");
};
await assert.rejects(model.generate("Once").result, SternaCrash);
Model.prototype.step = step;
await assert.rejects(model.generate("Once").result, SternaCrash);
const fresh = await load(demoModel, options);
assert.deepEqual((await fresh.generate("Once", greedy).result).tokens, ours.tokens);
console.log("kept");
process.exit(0);
