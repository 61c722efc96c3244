// Runs the kernel comparison that `scripts/wasm-kernels` has compiled, and prints its report.
import { readFileSync } from "node:fs";

const module = new WebAssembly.Module(readFileSync(process.argv[2]));
// Imports for a browser's clock and random numbers, which must not be called.
const imports = {};
for (const { module: from, name, kind } of WebAssembly.Module.imports(module)) {
  if (kind !== "function") throw new Error(`an import that is not a function: ${from} ${name}`);
  (imports[from] ??= {})[name] = () => {
    throw new Error(`${name} was called`);
  };
}
const { exports } = new WebAssembly.Instance(module, imports);
const text = (start, length) =>
  new TextDecoder().decode(new Uint8Array(exports.memory.buffer, start, length));
exports.remember_panics();
try {
  const report = text(exports.report_start(), exports.report_len());
  console.log(report);
  process.exitCode = report.endsWith("\nok") ? 0 : 1;
} catch (error) {
  console.error(text(exports.panic_start(), exports.panic_len()) || error);
  process.exitCode = 1;
}
