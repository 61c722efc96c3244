// The browsers of this machine, on software devices, and the checks of every test: no error in the console,
// no exception, no request to other servers.

import assert from "node:assert/strict";
import { tmpdir } from "node:os";
import puppeteer from "puppeteer-core";

import { chromium, firefox, lavapipe } from "./machine.mjs";

// Without the first flag Chromium has no WebGPU here; with it, it uses SwiftShader's.
const FLAGS = [
  "--enable-unsafe-webgpu",
  "--no-sandbox",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
];

/** Starts a browser, `chromium` or `firefox`. */
export function launch(name) {
  if (name === "chromium") {
    return puppeteer.launch({ executablePath: chromium, headless: true, args: FLAGS });
  }
  return puppeteer.launch({
    browser: "firefox",
    executablePath: firefox,
    headless: true,
    env: { ...process.env, XDG_RUNTIME_DIR: tmpdir(), ...(lavapipe && { VK_ICD_FILENAMES: lavapipe }) },
    extraPrefsFirefox: {
      "dom.webgpu.enabled": true,
      "dom.webgpu.workers.enabled": true,
      "gfx.webgpu.ignore-blocklist": true,
    },
  });
}

/**
 * A tab with a new profile and these checks; `expected` are patterns of console messages that the test
 * provokes.
 */
export async function visit(browser, url, { expected = [], context } = {}) {
  const profile = context ?? (await browser.createBrowserContext());
  const page = await profile.newPage();
  // A generous limit for busy machines: it only ends tests that would wait forever.
  page.setDefaultTimeout(300_000);
  const seen = [];
  const origin = new URL(url).origin;
  page.on("request", (request) => {
    const own = request.url().startsWith(origin) || /^(data|blob):/.test(request.url());
    if (!own) seen.push(`a request to ${request.url()}`);
  });
  page.on("pageerror", (error) => seen.push(`an exception: ${error.stack ?? error}`));
  page.on("console", (message) => {
    if (!["error", "warn"].includes(message.type())) return;
    if (!expected.some((pattern) => pattern.test(message.text())))
      seen.push(`${message.type()}: ${message.text()}`);
  });
  await page.goto(url);
  const close = async () => {
    await (context === undefined ? profile.close() : page.close());
    assert.deepEqual(seen, []);
  };
  return { page, profile, close };
}
