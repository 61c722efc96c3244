// Actions of a user on the page, and what the user sees. Each waits for visible changes rather than a fixed
// time.

import assert from "node:assert/strict";

import { visit } from "./browser.mjs";

/** The demo model's name in the page's list. */
export const DEMO = "sterna-world (in this page)";

/** Polling interval of conditions: a page in the background draws no frames. */
const POLLING = { polling: 50 };

/** Opens the page, and waits until its demo model is loaded. */
export async function ready(browser, url, options) {
  const visited = await visit(browser, url, options);
  await loaded(visited.page);
  return visited;
}

/** Switches the page to continuing texts: the demo model chats by default. */
export const inText = (page) => page.click("#modes [data-mode=text]");

/** Waits until the model with that name is loaded and the page is ready. */
export const loaded = (page, name = DEMO) =>
  page.waitForFunction(
    (name) =>
      document.querySelector("#models li[aria-current=true] .take")?.textContent === name &&
      document.querySelector("#loading").hidden &&
      document.querySelector("#status").textContent === "" &&
      !document.querySelector("#send").disabled,
    POLLING,
    name,
  );

/** Waits until an element of the page has text that matches a pattern. */
export const shows = (page, selector, { source, flags }) =>
  page.waitForFunction(
    (selector, source, flags) =>
      new RegExp(source, flags).test(document.querySelector(selector)?.textContent ?? ""),
    POLLING,
    selector,
    source,
    flags,
  );

export const textOf = (page, selector) => page.$eval(selector, (node) => node.innerText);

/** Waits until no text is being generated. */
export const finished = (page) =>
  page.waitForFunction(
    () => document.querySelector("#send").getAttribute("aria-label") !== "Stop",
    POLLING,
  );

/** Sends a message, and waits for the end of the answer: as many tokens as the page's settings have. */
export async function say(page, words) {
  await page.$eval("#prompt", (field) => (field.value = ""));
  await page.type("#prompt", words);
  await page.keyboard.press("Enter");
  // Sending clears the field.
  assert.equal(await page.$eval("#prompt", ({ value }) => value), "");
  await finished(page);
}

/** Starts to send a message, in a tab that need not be in front. */
export const begin = (page, words) =>
  page.evaluate((words) => {
    const field = document.querySelector("#prompt");
    field.value = words;
    field.form.requestSubmit();
  }, words);

/** Sets numbers in the settings. */
export async function set(page, numbers) {
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

/** Downloads a model by URL. */
export async function download(page, url) {
  await page.click("#open-models");
  await page.type("#model-url", url);
  await page.click("#model-form button");
}
