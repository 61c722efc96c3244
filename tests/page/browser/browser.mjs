// A browser for the tests, and checks that apply to every test: no console errors, no exceptions, and no
// requests except to its own server.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const PROGRAMS = [
  process.env.CHROMIUM,
  "/usr/bin/chromium",
  "/usr/bin/chromium-browser",
  "/usr/bin/google-chrome",
];
const FLAGS = [
  "--disable-gpu",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--disable-quic",
];

/** Starts Chromium without its sandbox, which containers often lack; it only opens our own pages. */
export async function launch() {
  const executablePath = PROGRAMS.find((path) => path && existsSync(path));
  assert.ok(executablePath, "Chromium was not found: install it, or set CHROMIUM to its path");
  return chromium.launch({ executablePath, chromiumSandbox: false, args: FLAGS });
}

const READY = "#empty:not([hidden]) #modes:not([hidden])";

/**
 * Opens a monitored tab in a fresh profile and waits until `until` is shown: by default, until a message can
 * be sent. `expected` are patterns of console errors that the test provokes.
 * Call `close` at the end: it fails if a forbidden event was seen.
 */
export async function visit(browser, url, { until = READY, expected = [], ...context } = {}) {
  const profile = await browser.newContext({
    viewport: { width: 1280, height: 800 },
    reducedMotion: "reduce",
    ...context,
  });
  const seen = [];
  const origin = new URL(url).origin;
  profile.on("request", (request) => {
    const own = request.url().startsWith(origin) || /^(data|blob):/.test(request.url());
    if (!own) seen.push(`a request to ${request.url()}`);
  });
  profile.on("weberror", (error) => seen.push(`an exception: ${error.error().stack}`));
  profile.on("console", (message) => {
    if (!["error", "warning"].includes(message.type())) return;
    if (!expected.some((pattern) => pattern.test(message.text())))
      seen.push(`${message.type()}: ${message.text()}`);
  });
  profile.on("dialog", (dialog) => {
    seen.push(`a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  const page = await profile.newPage();
  page.setDefaultTimeout(20_000);
  await page.goto(url);
  await page.waitForSelector(until);
  const close = async () => {
    await profile.close();
    assert.deepEqual(seen, []);
  };
  return { page, profile, close };
}
