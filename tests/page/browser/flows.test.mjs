// User flows in Chromium: against the mock server, or against the program in STERNA.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, visit } from "./browser.mjs";
import { mock } from "./mock.mjs";
import { program } from "./program.mjs";

const STERNA = process.env.STERNA;
const LONG = Array.from({ length: 3000 }, (_, n) => `word${n}`).join(" ");

let browser;
let chat;
let text;

before(async () => {
  browser = await launch();
  if (STERNA) {
    chat = text = await program(STERNA);
  } else {
    chat = await mock({ replies: { "tell me more": { text: LONG } } });
    text = await mock({
      template: "",
      models: ["world-f16"],
      replies: { "tell me more": { text: LONG } },
    });
  }
});

after(async () => {
  await browser?.close();
  chat?.close();
  text?.close();
});

/** A first visit that continues a text: the built-in model would chat otherwise. */
async function visitText() {
  const { page, ...rest } = await visit(browser, text.url);
  if (STERNA) await page.click("#modes [data-mode=text]");
  return { page, ...rest };
}

const bodies = (page, role) => page.locator(`.turn.${role} > :is(.plain, .markdown)`).allInnerTexts();

async function send(page, words) {
  await page.fill("#prompt", words);
  await page.press("#prompt", "Enter");
  await finished(page);
}

/** Waits until no answer is being written. */
async function finished(page) {
  await page.waitForSelector("#send:not([aria-label=Stop])");
}

/** Sets a number in the settings. */
async function set(page, name, value) {
  await page.click("#open-settings");
  await page.evaluate(() => (document.getElementById("more").open = true));
  await page.fill(`#parameter-${name}`, String(value));
  await page.click("#close-settings");
}

test("a first visit to a model without a template opens a text with a first sentence", async () => {
  const { page, close } = await visitText();
  assert.equal(await page.innerText("#empty-title"), "Begin a text");
  assert.equal(await page.inputValue("#prompt"), "Once upon a time");
  assert.equal(
    await page.getAttribute("[data-mode=text]#modes button, #modes [data-mode=text]", "aria-pressed"),
    "true",
  );
  assert.match(await page.innerText("#model-name"), /world/);
  await set(page, "n_predict", 24);
  await page.press("#prompt", "Enter");
  await finished(page);
  const written = await page.innerText(".passage.written");
  const continued = await page.innerText(".passage.continued");
  assert.equal(written, "Once upon a time");
  assert.ok(continued.trim().length > 10, continued);
  assert.match(await page.innerText("#context-text"), /^\d+ of [24],0\d\d tokens$/);
  assert.match(await page.innerText(".story .tools"), /[\d.]+ tokens\/s/);
  // An empty prompt continues the text.
  await page.press("#prompt", "Enter");
  await finished(page);
  assert.equal(await page.locator(".passage").count(), 3);
  assert.equal((await page.locator(".passage").allInnerTexts())[1], continued);
  await close();
});

test("a text: try again, go back to the first version, rewrite", async () => {
  const { page, close } = await visitText();
  await set(page, "n_predict", 12);
  await page.press("#prompt", "Enter");
  await finished(page);
  const first = await page.innerText(".flow");
  await page.click("text=Try again");
  await page.waitForSelector(".versions");
  await finished(page);
  assert.match(await page.innerText(".flow .versions"), /2\/2/);
  await page.click("[aria-label='Previous version']");
  assert.match(await page.innerText(".flow .versions"), /1\/2/);
  assert.equal((await page.locator(".passage").allInnerTexts()).join(""), first);
  await page.click("text=Edit text");
  assert.equal(await page.inputValue(".editor textarea"), first);
  await page.fill(".editor textarea", "Twice upon a time");
  await page.click("text=Keep");
  assert.deepEqual(await page.locator(".passage").allInnerTexts(), ["Twice upon a time"]);
  await page.click("[aria-label='Previous version']");
  assert.equal((await page.locator(".passage").allInnerTexts()).join(""), first);
  await close();
});

test("a first visit to the demo model shows example questions", async () => {
  const server = STERNA ? chat : await mock({ models: ["sterna-world"] });
  const { page, close } = await visit(browser, server.url);
  const first = "Tell me a story about a shy owl in winter.";
  assert.equal(await page.inputValue("#prompt"), first);
  const openings = await page.locator("#openings button").allInnerTexts();
  assert.deepEqual([openings[0], openings.length], [first, 3]);
  await page.click(`#openings >> text=${openings[2]}`);
  assert.equal(await page.inputValue("#prompt"), openings[2]);
  await set(page, "n_predict", 24);
  await page.press("#prompt", "Enter");
  await finished(page);
  assert.deepEqual(await bodies(page, "user"), [openings[2]]);
  // It is no longer the first visit.
  await page.click("#new");
  assert.equal(await page.inputValue("#prompt"), "");
  await close();
  if (server !== chat) server.close();
});

test("a chat, and its history after a reload", async () => {
  const { page, close } = await visit(browser, chat.url);
  await set(page, "n_predict", 16);
  await send(page, "Hello there");
  await send(page, "And again");
  const [mine, answers] = [await bodies(page, "user"), await bodies(page, "assistant")];
  assert.deepEqual(mine, ["Hello there", "And again"]);
  assert.equal(answers.length, 2);
  assert.ok(
    answers.every((answer) => answer.trim() !== ""),
    JSON.stringify(answers),
  );
  await page.reload();
  await page.waitForSelector(".turn");
  assert.deepEqual(await bodies(page, "user"), mine);
  assert.deepEqual(await bodies(page, "assistant"), answers);
  assert.equal(await page.innerText("#title-text"), "Hello there");
  assert.deepEqual(await page.locator("#list a").allInnerTexts(), ["Hello there"]);
  await close();
});

test("there is no empty space below a turn of the user", async () => {
  const { page, close } = await visit(browser, chat.url);
  await set(page, "n_predict", 8);
  await send(page, "Hello");
  const gap = await page.evaluate(() => {
    const [mine, answer] = [".turn.user .plain", ".turn.assistant .markdown"].map((selector) =>
      document.querySelector(selector).getBoundingClientRect(),
    );
    return answer.top - mine.bottom;
  });
  assert.ok(gap > 8 && gap < 28, `${gap} pixels`);
  // Its buttons overlay the following content on hover, and are reachable by keyboard.
  const seen = () => page.locator(".turn.user .tools").evaluate((node) => getComputedStyle(node).opacity);
  await page.mouse.move(0, 0);
  assert.equal(await seen(), "0");
  await page.focus(".turn.user .tools button");
  assert.equal(await seen(), "1");
  await page.hover(".turn.user .plain");
  await page.click(".turn.user >> text=Edit");
  assert.equal(await page.inputValue(".turn.user .editor textarea"), "Hello");
  await close();
});

/** Presses Escape once the answer has `characters` characters. Runs in the page, because the program writes a
 * thousand tokens per second. */
const stopAfter = (page, characters) =>
  page.evaluate((characters) => {
    const seen = new MutationObserver(() => {
      const words = document.querySelector(".turn.assistant .markdown")?.textContent.trim() ?? "";
      if (words.length < characters) return;
      seen.disconnect();
      document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
    });
    seen.observe(document.body, { subtree: true, childList: true, characterData: true });
  }, characters);

test("stop ends an answer and keeps its text", async () => {
  const { page, close } = await visit(browser, chat.url);
  await set(page, "n_predict", 900);
  // Any token is equally likely, so that the demo model does not end before it is stopped.
  await set(page, "temperature", 5);
  await set(page, "top_k", 0);
  await set(page, "top_p", 1);
  await set(page, "min_p", 0);
  await set(page, "seed", 1);
  await stopAfter(page, 20);
  await page.fill("#prompt", "tell me more");
  await page.press("#prompt", "Enter");
  await page.waitForSelector(".turn.assistant .note");
  await finished(page);
  assert.equal(await page.innerText(".turn.assistant .note"), "Stopped.");
  const [kept] = await bodies(page, "assistant");
  assert.ok(kept.length > 10);
  await new Promise((resolve) => setTimeout(resolve, 300));
  assert.deepEqual(await bodies(page, "assistant"), [kept]);
  if (!STERNA) assert.equal(chat.aborted, 1);
  await stopAfter(page, kept.length + 20);
  await page.click("text=Continue");
  const grown = (length) =>
    document.querySelector(".turn.assistant .markdown").textContent.trim().length > length;
  await page.waitForFunction(grown, kept.length);
  await finished(page);
  const [longer] = await bodies(page, "assistant");
  assert.ok(longer.startsWith(kept.trimEnd()), `${longer}\n\n${kept}`);
  await close();
});

test("an answer that stops at the length limit says so, and continues as the same answer", async () => {
  const { page, close } = await visit(browser, chat.url);
  await set(page, "n_predict", 8);
  await send(page, STERNA ? "Tell me a story about a shy owl in winter." : "tell me more");
  assert.equal(await page.innerText(".turn.assistant .note"), "Stopped at the length limit, after 8 tokens.");
  const [first] = await bodies(page, "assistant");
  const request = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
  await page.click(".notice >> text=Continue");
  const { messages, continue_final_message } = (await request).postDataJSON();
  assert.equal(continue_final_message, true);
  assert.equal(messages.at(-1).role, "assistant");
  assert.equal(messages.at(-1).content.trim(), first.trim());
  await finished(page);
  // It continues up to the limit again.
  assert.equal(await page.innerText(".turn.assistant .note"), "Stopped at the length limit, after 8 tokens.");
  const [longer, ...others] = await bodies(page, "assistant");
  assert.deepEqual(others, []);
  assert.ok(longer.startsWith(first.trimEnd()) && longer.length > first.length, `${longer}\n\n${first}`);
  if (!STERNA) assert.equal(longer.trim(), LONG.split(" ").slice(0, 16).join(" "));
  assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
  await close();
});

test("a text that stops at the length limit says so, and continues with another passage", async () => {
  const { page, close } = await visitText();
  await set(page, "n_predict", 12);
  await send(page, STERNA ? "Once upon a time" : "tell me more");
  assert.equal(await page.innerText(".story .note"), "Stopped at the length limit, after 12 tokens.");
  const first = await page.innerText(".flow");
  await page.fill("#prompt", "a draft");
  const request = page.waitForRequest((request) => request.url().endsWith("/completion"));
  await page.click(".notice >> text=Continue");
  assert.equal((await request).postDataJSON().prompt.trim(), first.trim());
  await finished(page);
  assert.equal(await page.locator(".passage").count(), 3);
  assert.ok((await page.innerText(".flow")).startsWith(first.trimEnd()));
  assert.equal(await page.inputValue("#prompt"), "a draft");
  await close();
});

test("regenerate, edit and branch keep every version", async () => {
  const { page, close } = await visit(browser, chat.url);
  await set(page, "n_predict", 16);
  await send(page, "First");
  const [before] = await bodies(page, "assistant");
  await page.click("text=Regenerate");
  await page.waitForSelector(".turn.assistant .versions");
  await finished(page);
  assert.match(await page.innerText(".turn.assistant .versions"), /2\/2/);
  await page.focus(".turn.assistant [aria-label='Previous version']");
  await page.keyboard.press("Enter");
  assert.deepEqual(await bodies(page, "assistant"), [before]);
  // There is no earlier version, so the focus has moved to the other arrow.
  assert.equal(await page.evaluate(() => document.activeElement.ariaLabel), "Next version");
  await page.hover(".turn.user");
  await page.click(".turn.user >> text=Edit");
  await page.fill(".editor textarea", "Second");
  await page.click(".editor >> text=Send");
  await page.waitForSelector(".turn.user .versions");
  await finished(page);
  assert.deepEqual(await bodies(page, "user"), ["Second"]);
  await page.hover(".turn.user");
  await page.click(".turn.user [aria-label='Previous version']");
  assert.deepEqual([await bodies(page, "user"), await bodies(page, "assistant")], [["First"], [before]]);
  await page.click(".turn.assistant >> text=Branch");
  assert.equal(await page.locator("#list a").count(), 2);
  assert.deepEqual([await bodies(page, "user"), await bodies(page, "assistant")], [["First"], [before]]);
  assert.equal(await page.locator(".versions").count(), 0);
  await close();
});

test("settings show the server's defaults, send only changes, and are remembered", async () => {
  const { page, close } = await visit(browser, chat.url);
  await page.click("#open-settings");
  const placeholder = (name) => page.getAttribute(`#parameter-${name}`, "placeholder");
  assert.equal(await placeholder("top_p"), "0.95");
  assert.match(await placeholder("temperature"), /^0\.[28]$/);
  await page.fill("#parameter-temperature", "0");
  await page.fill("#parameter-n_predict", "5");
  // The settings that new users need come first, each with an explanation.
  const first = await page.locator("#parameters label").allInnerTexts();
  assert.deepEqual(first, ["Temperature", "Length", "Seed"]);
  assert.equal(await page.locator("#parameter-top_p").isVisible(), false);
  await page.click("#more summary");
  const silent = await page.locator(".parameter :is(input, textarea)").evaluateAll((fields) => {
    const hint = (field) => document.getElementById(field.getAttribute("aria-describedby"));
    return fields.filter((field) => !hint(field)?.textContent.trim()).map(({ id }) => id);
  });
  assert.deepEqual(silent, []);
  await page.fill("#system", "Be brief.");
  await page.fill("#stop", "END\nSTOP");
  await page.click("#close-settings");
  const request = page.waitForRequest((request) => request.url().endsWith("/v1/chat/completions"));
  await send(page, "Hi");
  const { temperature, top_p, max_tokens, stop, messages } = (await request).postDataJSON();
  assert.deepEqual(
    { temperature, top_p, max_tokens, stop, messages },
    {
      temperature: 0,
      top_p: undefined,
      max_tokens: 5,
      stop: ["END", "STOP"],
      messages: [
        { role: "system", content: "Be brief." },
        { role: "user", content: "Hi" },
      ],
    },
  );
  await page.reload();
  await page.waitForSelector(".turn");
  await page.click("#open-settings");
  assert.equal(await page.inputValue("#parameter-temperature"), "0");
  assert.equal(await page.inputValue("#system"), "Be brief.");
  // A value that is set under "More" is visible.
  assert.equal(await page.inputValue("#stop"), "END\nSTOP");
  assert.equal(await page.locator("#stop").isVisible(), true);
  await page.click("#reset");
  assert.equal(await page.inputValue("#parameter-temperature"), "");
  await close();
});

test("user input is shown as plain text", async () => {
  const { page, close } = await visit(browser, chat.url);
  await set(page, "n_predict", 8);
  const hostile = "<img src=x onerror=alert(1)><script>alert(2)</script>";
  await send(page, hostile);
  assert.deepEqual(await bodies(page, "user"), [hostile]);
  assert.equal(await page.locator("#turns img, #turns script").count(), 0);
  assert.deepEqual(await page.locator("#list a").allInnerTexts(), [await page.innerText("#title-text")]);
  await close();
});

test("the colour scheme follows the system until the user chooses one", async () => {
  const { page, close } = await visit(browser, chat.url, { colorScheme: "dark" });
  const light = async () => {
    const [colour] = (await page.evaluate(() => getComputedStyle(document.body).backgroundColor)).match(
      /\d+/g,
    );
    return Number(colour) > 128;
  };
  assert.equal(await light(), false);
  await page.emulateMedia({ colorScheme: "light" });
  assert.equal(await light(), true);
  await page.click("#theme");
  assert.equal(await light(), false);
  await page.reload();
  await page.waitForSelector("#modes:not([hidden])");
  assert.equal(await light(), false);
  await page.click("#open-settings");
  await page.click(".choice >> text=System");
  assert.equal(await light(), true);
  await close();
});

test("a narrow screen shows everything without scrolling sideways", async () => {
  const phone = { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true };
  const { page, close } = await visit(browser, chat.url, phone);
  const fits = async () => {
    const outside = await page.evaluate(() => {
      const shown = [...document.querySelectorAll("#top *, #foot *, .turn, .turn .tools *, .sheet *")];
      return shown
        .filter((node) => node.checkVisibility() && node.getBoundingClientRect().right > innerWidth + 0.5)
        .map((node) => node.outerHTML.slice(0, 80));
    });
    assert.deepEqual(outside, []);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), 390);
  };
  await fits();
  assert.equal(await page.locator("#sidebar").evaluate((node) => node.inert), true);
  const models = await page.innerText("#empty-title");
  assert.equal(await page.locator("#model-name").innerText(), models);
  assert.equal(await page.locator("#model-name").isVisible(), true);
  await page.fill(
    "#prompt",
    "A title that is much longer than what a narrow screen has room for in its head line",
  );
  await page.tap("#send");
  await page.waitForSelector(".turn.assistant .tools button");
  await fits();
  await page.tap("#open-list");
  assert.equal(await page.locator("#main").evaluate((node) => node.inert), true);
  await page.locator("#list a").first().waitFor();
  await page.tap("#new");
  await page.waitForSelector("#empty:not([hidden])");
  assert.equal(await page.locator("#sidebar").evaluate((node) => node.inert), true);
  await page.tap("#open-settings");
  await fits();
  await close();
});

test("everything works with the keyboard", async () => {
  const { page, close } = await visit(browser, chat.url);
  await set(page, "n_predict", 8);
  // On a first visit to the demo model, the prompt contains a question.
  await page.fill("#prompt", "");
  await page.focus("#prompt");
  await page.keyboard.type("one");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("two");
  await page.keyboard.press("Enter");
  await finished(page);
  assert.deepEqual(await bodies(page, "user"), ["one\ntwo"]);
  assert.equal(await page.evaluate(() => document.activeElement.id), "prompt");
  await page.keyboard.press("ArrowUp");
  assert.equal(await page.inputValue(".editor textarea"), "one\ntwo");
  await page.keyboard.press("Escape");
  assert.equal(await page.locator(".editor").count(), 0);
  await page.keyboard.press("Control+Shift+O");
  await page.waitForSelector("#empty:not([hidden])");
  await page.keyboard.press("Control+K");
  await page.keyboard.type("nothing like it");
  assert.equal(await page.innerText("#list-empty"), "Nothing found.");
  await page.keyboard.press("Escape");
  assert.equal(await page.locator("#list a").count(), 1);
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".turn");
  await page.focus("#title");
  await page.keyboard.press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Rename");
  await page.keyboard.press("ArrowUp");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Delete");
  await page.keyboard.press("Home");
  await page.keyboard.press("Enter");
  await page.keyboard.type("A name");
  await page.keyboard.press("Enter");
  assert.deepEqual(await page.locator("#list a").allInnerTexts(), ["A name"]);
  await close();
});

test("delete, undo, export and import", async () => {
  const { page, close } = await visit(browser, chat.url);
  await set(page, "n_predict", 8);
  await send(page, "Keep me");
  const answers = await bodies(page, "assistant");
  const menu = async (entry) => {
    await page.click("#title");
    await page.click(`[role=menuitem] >> text=${entry}`);
  };
  const download = page.waitForEvent("download");
  await menu("Export");
  const file = await (await download).path();
  assert.equal((await download).suggestedFilename(), "Keep-me.json");
  await menu("Delete");
  await page.waitForSelector("text=Undo");
  assert.equal(await page.locator("#list a").count(), 0);
  await page.click("text=Undo");
  await page.waitForSelector(".turn");
  assert.deepEqual(await bodies(page, "assistant"), answers);
  await menu("Delete");
  await page.waitForSelector("text=Undo");
  await page.reload();
  await page.waitForSelector("#modes:not([hidden])");
  assert.equal(await page.locator("#list a").count(), 0);
  await page.setInputFiles("#import-file", file);
  await page.click("#list a >> text=Keep me");
  await page.waitForSelector(".turn");
  assert.deepEqual(await bodies(page, "assistant"), answers);
  await page.setInputFiles("#import-file", {
    name: "x.json",
    mimeType: "application/json",
    buffer: Buffer.from("{}"),
  });
  await page.waitForSelector("text=This file is no export");
  await close();
});

test("controls have the names and roles that screen readers need", async () => {
  const { page, close } = await visit(browser, chat.url);
  await set(page, "n_predict", 8);
  await send(page, "Hello");
  const nameless = await page.evaluate(() =>
    [...document.querySelectorAll("button, input, select, textarea, a, [role=region]")]
      .filter((node) => node.checkVisibility())
      .filter((node) => {
        const label = node.getAttribute("aria-label") || node.textContent || node.labels?.[0]?.textContent;
        return !label?.trim();
      })
      .map((node) => node.outerHTML),
  );
  assert.deepEqual(nameless, []);
  for (const role of ["main", "navigation"]) assert.equal(await page.getByRole(role).count(), 1);
  assert.equal(await page.getByRole("article").count(), 2);
  assert.equal(await page.getByRole("heading", { level: 1 }).count(), 1);
  // The answer is announced once, when it is complete.
  const [answer] = await bodies(page, "assistant");
  assert.equal((await page.textContent("#announcer")).trim(), answer.trim());
  await close();
});
