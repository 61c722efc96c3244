// The package in Node and in Deno says what the CPU backend says, on every device that there is.

import assert from "node:assert/strict";
import { copyFileSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { deno, here, installed, lavapipe, node, ran, root, swiftshader } from "./support/machine.mjs";

const data = join(root, "tests", "data");
const demo = join(root, "assets", "stories-bitnet.gguf");
const ids = (file) =>
  readFileSync(join(data, "golden", file), "utf8")
    .trimEnd()
    .split("\n")
    .map((line) => line.split(" ").map(Number));
const golden = (file) => join(data, "golden", file);
const prompts = ids("prompts.txt").slice(0, 3);
const TOKENS = 64;

/** From Black Beauty (Anna Sewell, 1877). */
const story = readFileSync(join(here, "support", "story.txt"), "utf8").trimEnd();

/** Models and caches; of `golden`, the tokens of another implementation. */
const CASES = [
  { file: demo, prompts: ["Once upon a time"] },
  {
    file: demo,
    prompts: ["Once upon a time"],
    load: { cacheTypeK: "turboquant", cacheTypeV: "turboquant" },
  },
  // Long enough that encoded pages are read from the prompt on.
  {
    file: demo,
    prompts: [story],
    maxTokens: 16,
    load: { nCtx: 512, cacheTypeK: "turboquant", cacheTypeV: "turboquant" },
  },
  { file: golden("bitnet/tiny-i2_s.gguf"), prompts, golden: "bitnet/i2_s.spec-fp64-kv16" },
  { file: golden("llama-i2_s/tiny-i2_s.gguf"), prompts, golden: "llama-i2_s/i2_s.spec-fp64" },
  { file: golden("qwen3/tiny-f16.gguf"), prompts, golden: "qwen3/f16.hf-fp32" },
  { file: golden("qwen3/tiny-f16.gguf"), prompts, load: { cacheTypeK: "turboquant", cacheTypeV: "q8_0" } },
].map((one) => ({ maxTokens: TOKENS, ...one, load: { nCtx: 256, ...one.load } }));

let place;
let want;

before(async () => {
  place = installed();
  copyFileSync(join(here, "support", "greedy.mjs"), join(place.folder, "greedy.mjs"));
  // Not a dependency of the package: of whoever wants a GPU in Node.
  symlinkSync(join(here, "node_modules", "webgpu"), join(place.folder, "node_modules", "webgpu"));
  want = await greedy(node, "cpu");
});
after(() => place?.remove());

async function greedy(program, backend, { driver, cases = CASES, gpu = [] } = {}) {
  const file = join(place.folder, `cases-${backend}.json`);
  const asked = cases.map(({ golden: _, ...one }) => ({ ...one, load: { ...one.load, backend } }));
  writeFileSync(file, JSON.stringify(asked));
  const args = program === deno ? ["run", "-A", "greedy.mjs", file] : ["greedy.mjs", file, ...gpu];
  return JSON.parse(await ran(program, args, { cwd: place.folder, driver }));
}

/** Of another implementation: the gap between the two largest logits at each of its steps, [prompts][48]. */
function margins(name) {
  const bytes = readFileSync(golden(`${name}.greedy-margin.npy`));
  const floats = new Float32Array(
    bytes.buffer.slice(bytes.byteOffset + 128, bytes.byteOffset + bytes.length),
  );
  return (prompt, step) => floats[prompt * 48 + step];
}

/** Sums of a GPU are made in another order: random models may differ where two logits are this near. */
const NEAR = 0.01;

function same(got, cases = CASES) {
  for (const [at, { file, load, golden: name }] of cases.entries()) {
    for (const [prompt, tokens] of want[at].tokens.entries()) {
      const ours = got[at].tokens[prompt];
      const step = tokens.findIndex((token, i) => token !== ours[i]);
      if (step >= 0 && name !== undefined && margins(name)(prompt, step) < NEAR) continue;
      assert.deepEqual(ours, tokens, `${file} with ${JSON.stringify(load)}, prompt ${prompt}`);
    }
  }
}

test("the CPU backend in Node says what the program and other implementations do", () => {
  const text = readFileSync(join(data, "demo", "once.txt"), "utf8");
  assert.ok(text.trimStart().startsWith(want[0].texts[0].trimStart()), `${want[0].texts[0]}\n${text}`);
  for (const [at, { golden: file }] of CASES.entries()) {
    // The others keep keys and values in f32.
    if (!file?.endsWith("kv16")) continue;
    const tokens = ids(`${file}.greedy.txt`).slice(0, prompts.length);
    for (const [prompt, theirs] of tokens.entries()) {
      const step = theirs.findIndex((token, i) => token !== want[at].tokens[prompt][i]);
      assert.ok(step < 0 || margins(file)(prompt, step) < NEAR, `${file}, prompt ${prompt}, step ${step}`);
    }
  }
});

test("Deno on the CPU", async () => {
  const cases = CASES.slice(0, 2);
  same(await greedy(deno, "cpu", { cases }), cases);
});

test("Deno on WebGPU", { skip: !lavapipe && "no lavapipe (mesa-vulkan-drivers)" }, async () => {
  const got = await greedy(deno, "webgpu", { driver: lavapipe });
  assert.equal(got[0].device.backend, "webgpu");
  same(got);
});

test("bytes asked of the device are those of the plan", { skip: !lavapipe && "no lavapipe" }, async () => {
  copyFileSync(join(here, "support", "bytes.mjs"), join(place.folder, "bytes.mjs"));
  const said = await ran(deno, ["run", "-A", "bytes.mjs"], { cwd: place.folder, driver: lavapipe });
  const { planned, asked } = JSON.parse(said);
  assert.equal(asked, planned);
});

test("Node on WebGPU", { skip: !swiftshader && "no SwiftShader (chromium-common)" }, async () => {
  // SwiftShader takes a second for each pipeline.
  const cases = CASES.slice(0, 1);
  const got = await greedy(node, "webgpu", { driver: swiftshader, cases, gpu: ["gpu"] });
  assert.equal(got[0].device.backend, "webgpu");
  same(got, cases);
});
