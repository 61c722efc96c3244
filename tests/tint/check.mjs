// Compiles every WGSL file of a folder by Tint, Chromium's compiler, and makes a pipeline of each, on Dawn's
// null device: node check.mjs FOLDER. Fails if one is refused, and if nonsense is not.
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { create, globals } from "webgpu";

Object.assign(globalThis, globals);

const folder = process.argv[2];
const gpu = create(["backend=null"]);
const adapter = await gpu.requestAdapter();
if (!adapter) throw new Error("Dawn has no null adapter");
const device = await adapter.requestDevice({
  requiredFeatures: ["subgroups"],
  requiredLimits: { maxStorageBuffersPerShaderStage: adapter.limits.maxStorageBuffersPerShaderStage },
});

// What Tint and the making of a pipeline say against a text, or null.
async function refusal(code) {
  device.pushErrorScope("validation");
  const module = device.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  const errors = messages.filter(({ type }) => type === "error");
  if (errors.length === 0) device.createComputePipeline({ layout: "auto", compute: { module } });
  const failed = await device.popErrorScope();
  const lines = code.split("\n");
  const told = errors.map(({ lineNum, message }) => `line ${lineNum}: ${message}\n    ${lines[lineNum - 1]}`);
  return told.length > 0 ? told.join("\n  ") : failed?.message ?? null;
}

const nonsense = [
  ["a shift and a mask", "@compute @workgroup_size(1) fn main() { let a = 1u; _ = a >> 1u & 1u; }"],
  [
    "a barrier that not every thread meets",
    `@compute @workgroup_size(8) fn main(@builtin(local_invocation_index) i: u32) {
      if (i < 4u) { workgroupBarrier(); }
    }`,
  ],
];
for (const [what, code] of nonsense) {
  if ((await refusal(code)) === null) throw new Error(`Tint takes ${what}: this check checks nothing`);
}

const files = readdirSync(folder).filter((name) => name.endsWith(".wgsl")).sort();
if (files.length === 0) throw new Error(`${folder}: no .wgsl file`);
const texts = new Map();
for (const name of files) {
  const code = readFileSync(join(folder, name), "utf8");
  if (!texts.has(code)) texts.set(code, name);
}
let refused = 0;
for (const [code, name] of texts) {
  const why = await refusal(code);
  if (why !== null) {
    refused += 1;
    if (refused <= 20) console.error(`${name}\n  ${why}`);
  }
}
console.log(`Tint: ${texts.size - refused} of ${texts.size} texts compile and make a pipeline`);
// Dawn's threads would keep the process.
process.exit(refused > 0 ? 1 : 0);
