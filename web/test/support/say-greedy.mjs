// Runs in Node and Deno: `say-greedy.mjs CASES.json [gpu]` prints the results of `greedy` for them, as JSON.
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
// The package's GPU keeps Node from exiting.
process.exit(0);
