// Not a test: `node memory.mjs FILE` prints the memory of the module in Deno for a large model whose weights
// are on the device. `scripts/web/memory` makes the model and runs this.

import { copyFileSync, statSync } from "node:fs";
import { join } from "node:path";

import { dist, deno, here, installed, lavapipe, ran } from "./support/machine.mjs";
import { host } from "./support/server.mjs";

const [file] = process.argv.slice(2);
const place = installed();
const server = await host(dist, { "large.gguf": file });
try {
  copyFileSync(join(here, "support", "memory.mjs"), join(place.folder, "memory.mjs"));
  const args = ["run", "-A", "memory.mjs", `${server.url}models/large.gguf`];
  const said = JSON.parse(await ran(deno, args, { cwd: place.folder, driver: lavapipe }));
  const mb = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
  console.log(`${mb(statSync(file).size)} of ${said.description} in ${said.seconds.toFixed(1)} s`);
  console.log(`weights on the device: ${mb(said.plan.weightsBytes)}`);
  console.log(`memory of the module: ${mb(said.bytes)}`);
} finally {
  server.close();
  place.remove();
}
