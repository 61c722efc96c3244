// The page in browsers: user actions, and failures. `BROWSERS` selects browsers.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import { launch, visit } from "./support/browser.mjs";
import { chromium, dist, firefox, lavapipe, root } from "./support/machine.mjs";
import * as reader from "./support/reader.mjs";
import { host } from "./support/server.mjs";
import { stopped } from "./support/timer.mjs";

const { DEMO, begin, download, finished, inText, loaded, ready, say, set, shows, textOf } = reader;
const FILE = join(root, "assets", "world.gguf");
const CPU = "?backend=cpu";
const chosen = process.env.BROWSERS?.split(",") ?? ["chromium", "firefox"];
const missing = {
  chromium: chromium === null && "no Chromium (Debian: chromium)",
  firefox: firefox === null && "no Firefox (Debian: firefox-esr)",
};

/** A text as one line. */
function oneLine(text) {
  return text.replace(/\s+/g, " ");
}

/** Maximum gap of the page's timer while a text is generated. */
const MAX_MS = 100;
const wanted = (name) => oneLine(readFileSync(join(root, "tests", "data", "demo", name), "utf8")).trim();
/** The program's continuation of "Once upon a time", and its answer to `ASKED`, as one line. */
const [ONCE, ANSWER] = [wanted("once.txt"), wanted("owl.txt")];
const ASKED = "Tell me a story about a shy owl in winter.";
const LIVED = "Once upon a time, a young king lived in the town. One morning the king went home. ";
const GREEDY = { temperature: 0, repeat_penalty: 1 };
const turns = async (page) => oneLine(await textOf(page, "#turns"));

/** Added to the engine's worker for a test: on request, its next step loses the device. */
const LOSES = `
new BroadcastChannel("test").addEventListener("message", () => {
  const begun = GPUDevice.prototype.createCommandEncoder;
  GPUDevice.prototype.createCommandEncoder = function createCommandEncoder(...args) {
    this.destroy();
    return begun.apply(this, args);
  };
});
`;
const lose = (page) => page.evaluate(() => new BroadcastChannel("test").postMessage("lose"));

/** Waits until the service worker has cached the page. */
const kept = (page) => page.evaluate(() => navigator.serviceWorker.ready.then(() => {}));

for (const name of chosen) {
  describe(name, { skip: missing[name] }, () => {
    let browser;
    let server;
    let folder;

    before(async () => {
      folder = mkdtempSync(join(tmpdir(), "sterna-models-"));
      const bytes = readFileSync(FILE);
      writeFileSync(
        join(folder, "hostile.gguf"),
        Buffer.concat([bytes.subarray(0, 4096), Buffer.alloc(4096, 255)]),
      );
      const models = Object.fromEntries(["story", "broken", "full"].map((name) => [`${name}.gguf`, FILE]));
      models["hostile.gguf"] = join(folder, "hostile.gguf");
      server = await host(join(dist, "page"), models, { "/sterna/worker.js": LOSES });
      browser = await launch(name);
    });
    after(async () => {
      await browser?.close();
      server?.close();
      rmSync(folder, { recursive: true, force: true });
    });
    /** Requests for a model. */
    const asked = (model) => server.requests.filter((path) => path.startsWith(`/models/${model}`));

    test("a story from the demo model, the words of the program", async () => {
      const { page, close } = await ready(browser, server.url + CPU);
      assert.equal(await page.$eval("#prompt", ({ value }) => value), ASKED);
      await set(page, { ...GREEDY, n_predict: 64 });
      await say(page, ASKED);
      const got = await turns(page);
      assert.ok(got.includes(ANSWER.slice(0, 150)), got);
      assert.match(await textOf(page, "#context-text"), /^\d+ of 2,048 tokens$/);
      await close();
    });

    test("while a text is written the page's thread is free, and a press ends it", async (t) => {
      const { page, close } = await ready(browser, server.url + CPU);
      await inText(page);
      await set(page, { ...GREEDY, n_predict: 300 });
      const seen = [];
      const free = () => seen.some((gaps) => gaps.page < MAX_MS);
      for (let at = 0; at < 20 && !free(); at += 1) {
        // Another prompt each time, because the cache would skip a repeated one. Some 200 tokens follow.
        const words = `${at + 1}. ${LIVED.repeat(30)}Once upon a time`;
        const { label, chars, ...gaps } = await stopped(page, words);
        assert.equal(label, "Stop", "the text ended before it was stopped");
        await finished(page);
        const kept = await page.$eval("#turns", (turns) => turns.textContent.length);
        assert.ok(kept >= chars, `${kept} of ${chars} characters are left`);
        seen.push(gaps);
      }
      const quiet = seen.filter(({ here }) => here < MAX_MS / 2);
      const told = seen.map(({ page, here }) => `${Math.round(page)} (here ${Math.round(here)})`).join(", ");
      if (!free() && quiet.length < 3) t.diagnostic(`the machine is too busy to tell; gaps in ms: ${told}`);
      else assert.ok(free(), `the page's timer had gaps, in ms: ${told}`);
      // A new text can be generated.
      await set(page, { n_predict: 8 });
      await page.$eval("#new", (button) => button.click());
      await say(page, "Once upon a time");
      const got = await turns(page);
      assert.ok(got.includes(ONCE.slice(0, 25)), got);
      await close();
    });

    test("a download with progress, and later a chat from the store without a request", async () => {
      const { page, profile, close } = await ready(browser, server.url + CPU);
      await page.evaluate(() => {
        const [line, told] = [document.querySelector("#loading-text"), []];
        new MutationObserver(() => told.push(line.textContent)).observe(line, { childList: true });
        globalThis.told = told;
      });
      await download(page, `${server.url}models/story.gguf`);
      await loaded(page, "story");
      const told = await page.evaluate(() => globalThis.told);
      for (const wanted of [/^Downloading story: \d+ %$/, /^Loading story: \d+ %$/])
        assert.ok(
          told.some((text) => wanted.test(text)),
          told.join("\n"),
        );
      assert.equal(asked("story").length, 1);
      const again = await visit(browser, server.url + CPU, { context: profile });
      await loaded(again.page, "story");
      await set(again.page, { ...GREEDY, n_predict: 8 });
      for (const words of ["Tell me of the king.", "And then?"]) await say(again.page, words);
      const answers = await again.page.$$eval(".turn.assistant > .markdown", (all) =>
        all.map(({ innerText }) => innerText.trim()),
      );
      assert.ok(answers.length === 2 && !answers.includes(""), answers.join("\n"));
      assert.equal(asked("story").length, 1);
      await again.close();
      await close();
    });

    test("a broken download goes on where it was", async () => {
      const { page, close } = await ready(browser, server.url + CPU, { expected: [/ERR_/, /net::/] });
      server.holdAt = 1_000_000;
      await download(page, `${server.url}models/broken.gguf`);
      await shows(page, "#loading-text", /^Downloading broken: [1-9]\d* %$/);
      server.cut();
      await loaded(page, "broken");
      const [first, second, ...more] = asked("broken");
      assert.deepEqual([first, more], ["/models/broken.gguf", []]);
      assert.match(second, / bytes=[1-9]\d*-$/);
      await close();
    });

    test("without room there is an error, and the page goes on", { skip: name === "firefox" }, async () => {
      const { page, close } = await ready(browser, server.url + CPU);
      // The cached page takes storage as well.
      await kept(page);
      const session = await page.createCDPSession();
      // The demo model takes 3.7 MB.
      const { origin } = new URL(server.url);
      await session.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: 1 << 20 });
      await download(page, `${server.url}models/full.gguf`);
      await shows(page, "#status", /there is no room/);
      await session.send("Storage.overrideQuotaForOrigin", { origin });
      await page.select("#model", DEMO);
      await loaded(page);
      await close();
    });

    test("a hostile file is refused, and the page goes on", async () => {
      const { page, close } = await ready(browser, server.url + CPU);
      await download(page, `${server.url}models/hostile.gguf`);
      await shows(page, "#status", /could not be loaded/);
      await page.select("#model", DEMO);
      await loaded(page);
      await set(page, { n_predict: 8 });
      await say(page, "Once");
      assert.ok((await turns(page)).length > "Once".length);
      await close();
    });

    test("two tabs write at once", async () => {
      const first = await ready(browser, server.url + CPU);
      const second = await ready(browser, server.url + CPU, { context: first.profile });
      const tabs = [first.page, second.page];
      for (const page of tabs) {
        await page.bringToFront();
        await inText(page);
        await set(page, { ...GREEDY, n_predict: 300 });
      }
      await Promise.all(tabs.map((page) => begin(page, "Once upon a time")));
      await Promise.all(tabs.map(finished));
      for (const page of tabs) {
        const got = await turns(page);
        assert.ok(got.includes(ONCE.slice(0, 150)), got);
      }
      await second.close();
      await first.close();
    });

    test("without a network, the page and its model are there", async () => {
      const { page, profile, close } = await ready(browser, server.url + CPU, {
        expected: [/ERR_/, /net::/],
      });
      await kept(page);
      server.isGone = true;
      const later = await visit(browser, server.url + CPU, { context: profile, expected: [/ERR_/, /net::/] });
      await loaded(later.page);
      await later.close();
      server.isGone = false;
      await close();
    });

    test(
      "on WebGPU, the same words",
      { skip: name === "firefox" && !lavapipe && "no lavapipe" },
      async () => {
        const { page, close } = await ready(browser, `${server.url}?backend=webgpu`);
        const tokens = name === "chromium" ? 6 : 64;
        await inText(page);
        await set(page, { ...GREEDY, n_predict: tokens });
        await say(page, "Once upon a time");
        const got = await turns(page);
        assert.ok(got.includes(ONCE.slice(0, tokens === 6 ? 20 : 150)), got);
        await lose(page);
        await say(page, "And");
        assert.match(await turns(page), /backend wgpu/);
        // The next text finds a new device.
        await set(page, { n_predict: 2 });
        await say(page, "But");
        const newest = await page.$eval("#turns > :last-child", (turn) => turn.innerText);
        assert.doesNotMatch(newest, /backend wgpu/);
        await close();
      },
    );
  });
}
