// Runs in Deno: prints the memory of a model's plan, and the memory requested from the device. Kernel
// parameters, a few kB of uniforms, are not part of a plan.

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
