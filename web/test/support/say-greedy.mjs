// Runs in Node and in Deno: `say-greedy.mjs CASES.json [gpu]` prints what `greedy` gives of them, as JSON.
// With `gpu`, WebGPU comes from the npm package of that name (Node).

import { readFileSync } from "node:fs";
import process from "node:process";

import { load } from "sterna";

import { greedy } from "./greedy.mjs";

const [cases, gpu] = process.argv.slice(2);
const options = {};
if (gpu === "gpu") {
  const { create, globals } = await import("webgpu");
  Object.assign(globalThis, globals);
  options.gpu = create([]);
}
console.log(JSON.stringify(await greedy(load, JSON.parse(readFileSync(cases, "utf8")), options)));
// A GPU of the package keeps Node awake.
process.exit(0);
