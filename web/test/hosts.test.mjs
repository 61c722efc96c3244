// The package in Node and in Deno gives the same results as the program's CPU backend, on every available
// device.

import assert from "node:assert/strict";
import { copyFileSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import { NEAR, cases, golden, same } from "./support/cases.mjs";
import { deno, here, installed, lavapipe, node, ran, root, swiftshader } from "./support/machine.mjs";
import { native, program } from "./support/native.mjs";
import { host } from "./support/server.mjs";

/** The missing requirement of a memory test, or false. */
const lacking = () =>
  (program === null && "no program to make a model with (STERNA)") || (!lavapipe && "no lavapipe");

let place;
/** The expected results: the program's, or without it the package's in Node. */
let want;

before(async () => {
  place = installed();
  for (const file of ["greedy.mjs", "say-greedy.mjs"])
    copyFileSync(join(here, "support", file), join(place.folder, file));
  // Users of a GPU in Node install this; it is not a dependency of the package.
  symlinkSync(join(here, "node_modules", "webgpu"), join(place.folder, "node_modules", "webgpu"));
});
after(() => place?.remove());

async function said(program, backend, { driver, of = cases, gpu = [] } = {}) {
  const file = join(place.folder, `cases-${backend}.json`);
  writeFileSync(file, JSON.stringify(of.map((one) => ({ ...one, load: { ...one.load, backend } }))));
  const args = program === deno ? ["run", "-A", "say-greedy.mjs", file] : ["say-greedy.mjs", file, ...gpu];
  const got = JSON.parse(await ran(program, args, { cwd: place.folder, driver }));
  for (const { device } of got) assert.equal(device.backend, backend);
  return got;
}

test("Node on the CPU says what the program does", async (t) => {
  const got = await said(node, "cpu");
  if (program === null) {
    // The gaps between the largest logits are unknown then; the number of differing texts is still limited.
    t.diagnostic("without a program (STERNA) tokens are those of the package on the CPU");
    want = got.map(({ tokens }) => ({ tokens, gaps: tokens.map((all) => all.map(() => 0)) }));
  } else {
    want = [];
    for (const one of cases) want.push(await native(one));
  }
  same(got, want, cases, { near: NEAR.cpu });
  const once = readFileSync(join(root, "tests", "data", "demo", "once.txt"), "utf8").trim();
  assert.ok(once.startsWith(got[0].texts[0].trim()), got[0].texts[0]);
});

test("another implementation says the same", () => {
  // Greedy tokens of an f64 reference with an f16 cache, and the gaps between its largest logits.
  const name = "bitnet/i2_s.spec-fp64-kv16";
  const lines = readFileSync(golden(`${name}.greedy.txt`), "utf8").trimEnd().split("\n").slice(1, 2);
  const theirs = lines.map((line) => line.split(" ").map(Number));
  const bytes = readFileSync(golden(`${name}.greedy-margin.npy`));
  const steps = theirs[0].length;
  const gaps = theirs.map((tokens) => tokens.map((_, step) => bytes.readFloatLE(128 + 4 * (steps + step))));
  const at = cases.findIndex(({ file, load }) => /bitnet.tiny/.test(file) && load.cacheTypeK === "f16");
  const ours = want[at].tokens.map((tokens) => tokens.slice(0, steps));
  same([{ tokens: ours }], [{ tokens: theirs, gaps }], [cases[at]], { maxTokens: steps });
});

test("Deno on the CPU", async () => {
  const of = cases.slice(0, 2);
  same(await said(deno, "cpu", { of }), want, of, { near: NEAR.cpu });
});

test("Deno on WebGPU", { skip: !lavapipe && "no lavapipe (mesa-vulkan-drivers)" }, async () => {
  same(await said(deno, "webgpu", { driver: lavapipe }), want, cases);
});

test("bytes asked of the device are those of the plan", { skip: !lavapipe && "no lavapipe" }, async () => {
  copyFileSync(join(here, "support", "bytes.mjs"), join(place.folder, "bytes.mjs"));
  const said = await ran(deno, ["run", "-A", "bytes.mjs"], { cwd: place.folder, driver: lavapipe });
  const { planned, asked } = JSON.parse(said);
  assert.equal(asked, planned);
});

test("weights on a device take no memory of the module", { skip: lacking() }, async () => {
  copyFileSync(join(here, "support", "memory.mjs"), join(place.folder, "memory.mjs"));
  const file = join(place.folder, "large.gguf");
  const shape = ["--preset", "bitnet-2b-4t", "--layers", "4", "--vocab", "32000"];
  await ran(program, ["synth", ...shape, file], { cwd: place.folder });
  const server = await host(place.folder, { "large.gguf": file });
  try {
    const args = ["run", "-A", "memory.mjs", `${server.url}models/large.gguf`];
    const { bytes, plan } = JSON.parse(await ran(deno, args, { cwd: place.folder, driver: lavapipe }));
    assert.ok(plan.weightsBytes > 200e6, `${plan.weightsBytes} bytes of weights`);
    assert.ok(bytes < 100e6, `${bytes} bytes of memory`);
  } finally {
    server.close();
  }
});

test("Node on WebGPU", { skip: !swiftshader && "no SwiftShader (chromium-common)" }, async () => {
  // SwiftShader takes a second per pipeline.
  const of = cases.slice(0, 1);
  same(await said(node, "webgpu", { driver: swiftshader, of, gpu: ["gpu"] }), want, of);
});
