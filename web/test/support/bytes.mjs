// Runs in Deno: prints what a model's plan says of its memory, and what is asked of the device for it.
// Parameters of kernels, a few kB of uniforms, are no part of a plan.

import process from "node:process";

import { demoModel, load } from "sterna";

let asked = 0;
const { createBuffer } = GPUDevice.prototype;
GPUDevice.prototype.createBuffer = function counted(about) {
  if ((about.usage & GPUBufferUsage.UNIFORM) === 0) asked += about.size;
  return createBuffer.call(this, about);
};
const { plan } = await load(demoModel, { backend: "webgpu", nCtx: 256, cacheTypeK: "turboquant" });
const planned = Object.values(plan).reduce((sum, bytes) => sum + bytes);
console.log(JSON.stringify({ planned, asked }));
process.exit(0);
