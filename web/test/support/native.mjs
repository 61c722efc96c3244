// The results of the program `sterna` on its CPU backend: everything here is compared to its tokens.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";

const path = process.env.STERNA;
if (path !== undefined) assert.ok(existsSync(path), `STERNA: ${path} does not exist`);
/** The program, or null. */
export const program = path ?? null;

/** The program's flags for the package's options. */
const FLAGS = {
  nCtx: "--ctx-size",
  cacheTypeK: "--cache-type-k",
  cacheTypeV: "--cache-type-v",
  actType: "--act-type",
};

/**
 * The greedy tokens of a model.
 *
 * @param {{file: string, load: object, prompts: (string | number[])[], maxTokens: number}} one
 * @returns {Promise<{tokens: number[][], gaps: number[][]}>} per prompt; `gaps` are those between the two
 * largest logits
 */
export async function native({ file, load, prompts, maxTokens }) {
  const flags = Object.entries(load).flatMap(([name, value]) => [FLAGS[name], String(value)]);
  const args = ["serve", "-m", file, "--port", "0", "--backend", "cpu", ...flags];
  const server = spawn(program, args, { stdio: ["ignore", "ignore", "pipe"] });
  try {
    const address = await new Promise((resolve, reject) => {
      let said = "";
      server.on("error", reject);
      server.on("exit", (code) => reject(new Error(`${args.join(" ")} ended with ${code}: ${said}`)));
      server.stderr.setEncoding("utf8").on("data", (text) => {
        said += text;
        const [, address] = said.match(/listening on (http\S+)\s/) ?? [];
        if (address !== undefined) resolve(address);
      });
    });
    const answers = [];
    for (const prompt of prompts) answers.push(await completion(address, prompt, maxTokens));
    return {
      tokens: answers.map((steps) => steps.map(({ id }) => id)),
      gaps: answers.map((steps) => steps.map(({ top_logprobs: [a, b] }) => a.logprob - b.logprob)),
    };
  } finally {
    server.removeAllListeners("exit");
    server.kill();
  }
}

async function completion(address, prompt, maxTokens) {
  for (;;) {
    const response = await fetch(`${address}/completion`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({
        prompt,
        n_predict: maxTokens,
        temperature: 0,
        repeat_penalty: 1,
        ignore_eos: true,
        n_probs: 2,
      }),
    });
    const answer = await response.json();
    if (response.ok) return answer.completion_probabilities;
    // The model is loading.
    if (response.status !== 503) throw new Error(`${response.status}: ${JSON.stringify(answer)}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
