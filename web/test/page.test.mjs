// The page in browsers: what a reader does, and what may go wrong. `BROWSERS` names those to be tried.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";

import { launch, visit } from "./support/browser.mjs";
import { chromium, dist, firefox, lavapipe, root } from "./support/machine.mjs";
import { host } from "./support/server.mjs";

const DEMO = join(root, "assets", "stories-bitnet.gguf");
const chosen = process.env.BROWSERS?.split(",") ?? ["chromium", "firefox"];
const missing = {
  chromium: chromium === null && "no Chromium (Debian: chromium)",
  firefox: firefox === null && "no Firefox (Debian: firefox-esr)",
};

/** Opens the page, and waits until its model is loaded. */
async function ready(browser, server, { query = "?backend=cpu", ...options } = {}) {
  const visited = await visit(browser, server.url + query, options);
  await loaded(visited.page);
  return visited;
}

/** Waits until a model is there and its page is ready. */
const loaded = (page) =>
  page.waitForFunction(
    () =>
      document.querySelector("#loading")?.hidden === true &&
      document.querySelector("#status").textContent === "" &&
      document.querySelector("#empty-title").textContent !== "",
  );

/** Waits until the page says so of its model. */
async function said(page, words) {
  const told = () => page.$eval("#status", ({ textContent }) => textContent);
  for (let tries = 0; !(await told()).includes(words); tries += 1) {
    assert.ok(tries < 600, `want ${words}, and the page says: ${await told()}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

const textOf = (page, selector) => page.$eval(selector, (node) => node.innerText);
const writing = "#send[aria-label=Stop]";
const finished = (page) => page.waitForSelector("#send:not([aria-label=Stop])");

/** Says something, with as many tokens as the page's settings have. */
async function say(page, words) {
  await page.$eval("#prompt", (field) => (field.value = ""));
  await page.type("#prompt", words);
  await page.keyboard.press("Enter");
}

/** Sets numbers in the settings. */
async function set(page, numbers) {
  await page.click("#open-settings");
  for (const [name, value] of Object.entries(numbers)) {
    await page.$eval(
      `#parameter-${name}`,
      (field, value) => {
        field.value = value;
        field.dispatchEvent(new Event("change"));
      },
      String(value),
    );
  }
  await page.click("#close-settings");
}

/** Has the engine's device lost before its next step. */
async function lost(page) {
  const [worker] = page.workers();
  await worker.evaluate(() => {
    const begun = GPUDevice.prototype.createCommandEncoder;
    GPUDevice.prototype.createCommandEncoder = function createCommandEncoder(...args) {
      this.destroy();
      return begun.apply(this, args);
    };
  });
}

async function download(page, url) {
  await page.click("#open-models");
  await page.type("#model-url", url);
  await page.click("#model-form button");
}

for (const name of chosen) {
  describe(name, { skip: missing[name] }, () => {
    let browser;
    let server;
    let folder;

    before(async () => {
      folder = mkdtempSync(join(tmpdir(), "sterna-models-"));
      const bytes = readFileSync(DEMO);
      writeFileSync(
        join(folder, "hostile.gguf"),
        Buffer.concat([bytes.subarray(0, 4096), Buffer.alloc(4096, 255)]),
      );
      server = await host(join(dist, "page"), {
        "story.gguf": DEMO,
        "broken.gguf": DEMO,
        "two.gguf": DEMO,
        "full.gguf": DEMO,
        "hostile.gguf": join(folder, "hostile.gguf"),
      });
      browser = await launch(name);
    });
    after(async () => {
      await browser?.close();
      server?.close();
      rmSync(folder, { recursive: true, force: true });
    });

    test("a story from the demo model, the words of the program", async () => {
      const { page, close } = await ready(browser, server);
      await set(page, { temperature: 0, repeat_penalty: 1, n_predict: 64 });
      await say(page, "Once upon a time");
      await finished(page);
      const want = readFileSync(join(root, "tests", "data", "demo", "once.txt"), "utf8").trim();
      const got = (await textOf(page, "#turns")).replace(/\s+/g, " ");
      assert.ok(got.includes(want.replace(/\s+/g, " ").slice(0, 150)), got);
      assert.match(await textOf(page, "#context-text"), /^\d+ of 1,024 tokens$/);
      await close();
    });

    test("stopping in mid-sentence keeps what came, and another text follows", async () => {
      const { page, close } = await ready(browser, server);
      await set(page, { n_predict: 900 });
      // What else runs on this machine may hold the page up, too: not every time.
      let longest = Infinity;
      for (let tries = 0; tries < 4 && longest >= 100; tries += 1) {
        await say(page, "The king");
        await page.waitForSelector(writing);
        const told = (await textOf(page, "#turns")).length;
        await page.waitForFunction(
          (told) => document.querySelector("#turns").innerText.length > told + 20,
          {},
          told,
        );
        longest = await page.evaluate(async () => {
          let [longest, before] = [0, performance.now()];
          const timer = setInterval(() => {
            const now = performance.now();
            [longest, before] = [Math.max(longest, now - before), now];
          }, 10);
          await new Promise((resolve) => setTimeout(resolve, 300));
          clearInterval(timer);
          return longest;
        });
        assert.ok((await page.$(writing)) !== null, "the text ended before it was stopped");
        await page.click("#send");
        await finished(page);
      }
      assert.ok(longest < 100, `the page's timer had a gap of ${longest} ms`);
      await set(page, { n_predict: 8 });
      await say(page, "And then");
      await finished(page);
      await close();
    });

    test("a download with progress, and after a reload the store without a request", async () => {
      const { page, profile, close } = await ready(browser, server);
      const url = `${server.url}models/story.gguf`;
      await download(page, url);
      await page.waitForFunction(() => document.querySelector("#model")?.value === "story");
      await loaded(page);
      assert.equal(server.requests.filter((path) => path.startsWith("/models/story.gguf")).length, 1);
      const before = server.requests.length;
      const again = await visit(browser, `${server.url}?backend=cpu`, { context: profile });
      await again.page.waitForFunction(() => document.querySelector("#model")?.value === "story");
      await loaded(again.page);
      await set(again.page, { n_predict: 8 });
      await say(again.page, "Once");
      await finished(again.page);
      const asked = server.requests.slice(before).filter((path) => path.includes(".gguf"));
      assert.deepEqual(asked, []);
      await again.close();
      await close();
    });

    test("a broken download goes on where it was", async () => {
      const { page, close } = await ready(browser, server, { expected: [/ERR_/, /net::/] });
      server.breakAt = 1_000_000;
      await download(page, `${server.url}models/broken.gguf`);
      await page.waitForFunction(() => document.querySelector("#model")?.value === "broken");
      await loaded(page);
      const asked = server.requests.filter((path) => path.startsWith("/models/broken.gguf"));
      assert.equal(asked.length, 2, asked.join(", "));
      assert.match(asked[1], / bytes=[1-9]\d*-$/);
      await close();
    });

    test("without room there is an error, and the page goes on", { skip: name === "firefox" }, async () => {
      const { page, close } = await ready(browser, server);
      // The demo model takes 3 MB.
      const session = await page.createCDPSession();
      await session.send("Storage.overrideQuotaForOrigin", {
        origin: new URL(server.url).origin,
        quotaSize: 1 << 20,
      });
      await download(page, `${server.url}models/full.gguf`);
      await said(page, "there is no room");
      await session.send("Storage.overrideQuotaForOrigin", { origin: new URL(server.url).origin });
      await page.select("#model", "Stories (in this page)");
      await loaded(page);
      await close();
    });

    test("a hostile file is refused, and the page goes on", async () => {
      const { page, close } = await ready(browser, server);
      await download(page, `${server.url}models/hostile.gguf`);
      await said(page, "could not be loaded");
      await page.select("#model", "Stories (in this page)");
      await loaded(page);
      await set(page, { n_predict: 8 });
      await say(page, "Once");
      await finished(page);
      assert.ok((await textOf(page, "#turns")).length > 4);
      await close();
    });

    test("two tabs write at once", async () => {
      const first = await ready(browser, server);
      const second = await ready(browser, server, { context: first.profile });
      for (const { page } of [first, second]) {
        await page.bringToFront();
        await set(page, { n_predict: 12 });
        await say(page, "Once");
      }
      // A tab in the background draws nothing, so it is not seen to end.
      for (const { page } of [first, second]) {
        await page.bringToFront();
        await finished(page);
      }
      await second.close();
      await first.close();
    });

    test("without a network, the page and its model are there", async () => {
      const { page, profile, close } = await ready(browser, server, { expected: [/ERR_/, /net::/] });
      await page.evaluate(() => navigator.serviceWorker.ready);
      const before = server.requests.length;
      const { page: later, close: closeLater } = await visit(browser, server.url, { context: profile });
      await loaded(later);
      const asked = server.requests.slice(before).filter((path) => path !== "/offline.js");
      assert.deepEqual(asked, []);
      await closeLater();
      await close();
    });

    test(
      "on WebGPU, the same words",
      { skip: name === "firefox" && !lavapipe && "no lavapipe" },
      async () => {
        const { page, close } = await ready(browser, server, { query: "?backend=webgpu" });
        const tokens = name === "chromium" ? 6 : 64;
        await set(page, { temperature: 0, repeat_penalty: 1, n_predict: tokens });
        await say(page, "Once upon a time");
        await finished(page);
        const want = readFileSync(join(root, "tests", "data", "demo", "once.txt"), "utf8")
          .trim()
          .replace(/\s+/g, " ");
        const got = (await textOf(page, "#turns")).replace(/\s+/g, " ");
        assert.ok(got.includes(want.slice(0, tokens === 6 ? 20 : 150)), got);
        if (name === "firefox") return close(); // Its driver runs nothing in workers.
        await lost(page);
        await say(page, "And");
        await finished(page);
        assert.match(await textOf(page, "#turns"), /backend wgpu/);
        // The next one finds a device anew.
        await set(page, { n_predict: 2 });
        await say(page, "But");
        await finished(page);
        assert.doesNotMatch(
          await page.$eval("#turns > :last-child", (turn) => turn.innerText),
          /backend wgpu/,
        );
        await close();
      },
    );
  });
}
