// Runs in Node and in Deno: `greedy.mjs CASES.json [gpu]` loads each model and prints the greedy tokens of
// each prompt, as JSON. With `gpu`, WebGPU comes from the npm package of that name (Node).

import { readFileSync } from "node:fs";
import process from "node:process";

import { load } from "sterna";

const [cases, gpu] = process.argv.slice(2);
const options = {};
if (gpu === "gpu") {
  const { create, globals } = await import("webgpu");
  Object.assign(globalThis, globals);
  options.gpu = create([]);
}
const said = [];
for (const { file, load: how, prompts, maxTokens } of JSON.parse(readFileSync(cases, "utf8"))) {
  const model = await load(file, { ...options, ...how });
  const answers = prompts.map((prompt) =>
    model.generate(prompt, { temperature: 0, repeatPenalty: 1, maxTokens, ignoreEos: true }),
  );
  const results = await Promise.all(answers.map(({ result }) => result));
  const { device, plan } = model;
  said.push({
    device,
    plan,
    texts: results.map(({ text }) => text),
    tokens: results.map(({ tokens }) => tokens),
  });
  await model.dispose();
}
console.log(JSON.stringify(said));
// A GPU of the package keeps Node awake.
process.exit(0);
