// The package as users get it: its size, the README's programs in Node and Deno, and a bundler.

import assert from "node:assert/strict";
import { cpSync, existsSync, readFileSync, readdirSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { gzipSync } from "node:zlib";
import { build } from "vite";

import { deno, dist, here, installed, node, ran, root, tarball } from "./support/machine.mjs";

let place;
before(() => {
  place = installed();
});
after(() => place?.remove());

/**
 * Maximum bytes of the modules, raw and compressed with gzip. They may only grow for new features. Last: more
 * formats of tool calls (GLM, MiniMax, Seed-OSS, Gemma 3, Kimi), and Lark of custom tools. Gzip sizes
 * differed by 1 and 2 % between two machines: the limits allow for that.
 */
const MAX_BYTES = {
  "engine_bg.wasm": { raw: 2_158_000, gzip: 844_000 },
  "structured_bg.wasm": { raw: 3_357_000, gzip: 1_312_000 },
};

test("the modules are no larger than they were", () => {
  for (const [name, most] of Object.entries(MAX_BYTES)) {
    const bytes = readFileSync(join(dist, "package", name));
    const gzip = gzipSync(bytes, { level: 9 }).length;
    console.log(`${name}: ${bytes.length} bytes, ${gzip} by gzip; the package: ${statSync(tarball).size}`);
    assert.ok(bytes.length <= most.raw, `${name} has ${bytes.length} bytes, and may have ${most.raw}`);
    assert.ok(gzip <= most.gzip, `${name} has ${gzip} bytes by gzip, and may have ${most.gzip}`);
    assert.ok(
      !bytes.includes(root) && !bytes.includes("/.cargo/"),
      `${name} names folders of this machine`,
    );
  }
});

test("the package has what its description names, and depends on nothing", () => {
  const folder = join(place.folder, "node_modules", "sterna");
  const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const files = [about.types, ...Object.values(about.exports["."])];
  for (const file of files) assert.ok(existsSync(join(folder, file)), file);
  assert.equal(about.dependencies, undefined);
  const { version } = JSON.parse(readFileSync(join(root, "web", "package.json"), "utf8"));
  const engine = readFileSync(join(root, "Cargo.toml"), "utf8").match(/^version = "(.*)"$/m)[1];
  assert.equal(version, engine, "the package and the engine are of one version");
  const names = readdirSync(join(place.folder, "node_modules")).filter((name) => !name.startsWith("."));
  assert.deepEqual(names, ["sterna"]);
});

for (const [name, program, args] of [
  ["Node", node, []],
  ["Deno", deno, ["run", "-A"]],
]) {
  test(`README's ten lines in ${name}`, async () => {
    const readme = readFileSync(join(root, "web", "README.md"), "utf8");
    const lines = readme.match(/```js\n([\s\S]*?)```/)[1];
    assert.ok(lines.split("\n").filter(Boolean).length <= 10, lines);
    writeFileSync(join(place.folder, "ten.mjs"), lines);
    const said = await ran(program, [...args, "ten.mjs"], { cwd: place.folder });
    assert.match(said, /^sterna-world on /);
    assert.match(said, /limit 60 tokens, \d+ a second/);
  });
}

test("errors, seeds, stops, chats, readers, structured text, and a new beginning", async () => {
  cpSync(join(here, "support", "promises.mjs"), join(place.folder, "promises.mjs"));
  assert.equal(await ran(node, ["promises.mjs"], { cwd: place.folder }), "kept\n");
});

test("an example page is built by Vite", async () => {
  const example = join(place.folder, "example");
  cpSync(join(here, "..", "example"), example, { recursive: true });
  await build({ root: example, logLevel: "error", build: { outDir: join(example, "dist") } });
  const assets = readdirSync(join(example, "dist", "assets")).join("\n");
  for (const wanted of [/engine_bg.*\.wasm/, /worker.*\.js/, /world.*\.gguf/])
    assert.match(assets, wanted);
});
