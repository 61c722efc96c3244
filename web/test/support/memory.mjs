// Runs in Deno: `memory.mjs ADDRESS` loads a model over the network, onto the device, and prints as JSON the
// size of the module's memory, and the model's first words.

import process from "node:process";

import { load } from "sterna";

const begun = performance.now();
const model = await load(process.argv[2], { backend: "webgpu", nCtx: 256 });
const seconds = (performance.now() - begun) / 1000;
const { default: engine } = await import(new URL("engine.js", import.meta.resolve("sterna")));
// The module is running, and this returns its exports. Its memory never shrinks.
const { memory } = await engine();
const bytes = memory.buffer.byteLength;
const { tokens } = await model.generate([1, 2, 3], { maxTokens: 2, temperature: 0, ignoreEos: true }).result;
const { description } = model.device;
console.log(JSON.stringify({ bytes, seconds, description, tokens, plan: model.plan }));
process.exit(0);
