// The models whose tokens are compared: the demo model, and a tiny one per architecture, with f16 and
// TurboQuant caches. Files of `../shared/golden` are skipped if missing.

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

/**
 * 190 tokens, so that decoding reads a page that TurboQuant has encoded, the second one (docs/kv-cache.md).
 */
const encoded = [...long, ...long.slice(1, 61)];

/** A prompt for the f16 cache, and one for TurboQuant. */
const prompts = { f16: short, turboquant: encoded };
const texts = { f16: "Once upon a time", turboquant: Array(3).fill(story).join(" ") };

/** The demo model, and one model per architecture, with a vocabulary. */
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

/** {file, int8, load, prompts, maxTokens} of each available model. */
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
 * Sums are computed in another order elsewhere, and WebAssembly has no fused multiply-add: if two logits are
 * this close, either may be the larger one. On a GPU more sums have another order. With inputs quantised to
 * int8, one flipped rounding moves logits by 0.04 on average in random models (tests/engine/golden_llama.rs);
 * in the demo model the largest change of a position's logits has a median of 0.03 (native, CPU and llvmpipe,
 * 291 positions).
 */
export const NEAR = { cpu: 1e-3, webgpu: 0.01, int8: 0.1 };

/**
 * Compares the tokens of `of` to the program's, {tokens, gaps} per case. Where a text first differs, the two
 * largest logits must be `near`, and at most one text of five (rounded up) may differ.
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
