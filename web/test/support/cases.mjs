// The models whose tokens are compared: the demo model, and a tiny one of each architecture, with caches of
// f16 and of TurboQuant. Those of `../shared/golden` are left out where it is not there.

import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { root } from "./machine.mjs";

/** A golden file, or null. */
export const golden = (file) =>
  [join(root, "tests", "data", "golden", file), join(root, "..", "shared", "golden", file)].find((path) =>
    existsSync(path),
  ) ?? null;

const demo = join(root, "assets", "world.gguf");
const [, short, , long] = readFileSync(golden("prompts.txt"), "utf8")
  .trimEnd()
  .split("\n")
  .map((line) => line.split(" ").map(Number));
const story = readFileSync(join(root, "tests", "data", "demo", "once.txt"), "utf8").trim();

/** 190 tokens: what follows reads a page that TurboQuant has encoded, the second one (docs/kv-cache.md). */
const encoded = [...long, ...long.slice(1, 61)];

/** A prompt for a cache of f16, and one for TurboQuant. */
const prompts = { f16: short, turboquant: encoded };
const texts = { f16: "Once upon a time", turboquant: Array(3).fill(story).join(" ") };

/** The demo model, and a model of each architecture that has a vocabulary in it. */
const MODELS = [
  { file: demo, prompts: texts, nCtx: 384, int8: true },
  { file: golden("bitnet/tiny-i2_s.gguf"), int8: true },
  { file: golden("llama-i2_s/tiny-i2_s.gguf"), int8: true },
  { file: golden("llama/tiny-f16.gguf") },
  { file: golden("qwen2/tiny-f16.gguf") },
  { file: golden("qwen3/tiny-f16.gguf") },
  { file: golden("qwen3moe/tiny-f16.gguf") },
  { file: golden("gemma3/tiny-f16.gguf") },
  { file: golden("gpt2/tiny-f16.gguf") },
];

/** {file, int8, load, prompts, maxTokens} each, of models that are here. */
export const cases = MODELS.filter(({ file }) => file !== null).flatMap(
  ({ file, prompts: own = prompts, nCtx = 256, int8 = false }) =>
    Object.entries(own).map(([cache, prompt]) => ({
      file,
      int8,
      prompts: [prompt],
      maxTokens: 64,
      load: { nCtx, cacheTypeK: cache, cacheTypeV: cache },
    })),
);

/**
 * Sums are made in another order elsewhere, and WebAssembly has no fused product and sum: where two logits
 * are this near, either may be the larger one. On a GPU more is summed in another order. Where inputs are
 * rounded to int8, one step that flips moves logits by 0.04 in the mean in random models
 * (tests/engine/golden_llama.rs); in the demo model the largest move of a position's logits has a median of
 * 0.03 (native, CPU and llvmpipe, 291 positions).
 */
export const NEAR = { cpu: 1e-3, webgpu: 0.01, int8: 0.1 };

/**
 * Holds the tokens of `of` to those of the program, {tokens, gaps} of each case. Where a text first differs
 * the two largest logits must be `near`, and that in one text of five at most, rounded up.
 */
export function same(got, want, of, { near = NEAR.webgpu, maxTokens = 64 } = {}) {
  let n = 0;
  const differ = [];
  for (const [at, { file, load, int8 }] of of.entries()) {
    for (const [prompt, all] of want[at].tokens.entries()) {
      const tokens = all.slice(0, maxTokens);
      const ours = got[at].tokens[prompt];
      const what = `${file} with ${JSON.stringify(load)}, prompt ${prompt}`;
      assert.equal(tokens.length, maxTokens, what);
      assert.equal(ours.length, maxTokens, what);
      n += 1;
      const step = tokens.findIndex((token, i) => token !== ours[i]);
      if (step < 0) continue;
      const gap = want[at].gaps[prompt][step];
      differ.push(`${what}: token ${step}, where the logits are ${gap} apart`);
      if (gap >= (int8 ? NEAR.int8 : near)) assert.deepEqual(ours, tokens, differ.at(-1));
    }
  }
  const most = Math.ceil(n / 5);
  assert.ok(differ.length <= most, `${differ.length} of ${n} texts differ:\n${differ.join("\n")}`);
}
