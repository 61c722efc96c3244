// Error cases: hostile answers, keys, and servers that are not ready, busy or unreachable. Only the mock
// server can produce them, so these tests do not run against the program.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launch, visit } from "./browser.mjs";
import { mock } from "./mock.mjs";

const FAILED = /Failed to load resource|net::ERR/;

let browser;

before(async () => {
  browser = await launch();
});
after(() => browser?.close());

async function ask(page, words) {
  await page.fill("#prompt", words);
  await page.press("#prompt", "Enter");
  await page.waitForSelector("#send:not([aria-label=Stop])");
}

const note = (page) => page.locator(".turn.assistant .note").last().innerText();

/** Pixels between the visible part and the end of the conversation. */
const fromEnd = (page) =>
  page.evaluate(() => {
    const { scrollHeight, scrollTop, clientHeight } = document.getElementById("scroll");
    return scrollHeight - scrollTop - clientHeight;
  });

/** Answers that would have an effect on a page that interprets them as HTML. */
const HOSTILE = [
  "<script>window.harmed = 1</script>",
  "<img src=x onerror='window.harmed = 1'>",
  "<svg onload='window.harmed = 1'><iframe src='javascript:parent.harmed = 1'></iframe></svg>",
  "[click](javascript:window.harmed=1) <javascript:window.harmed=1> ![i](https://tracker.example/p.png)",
  "```<img src=x onerror='window.harmed = 1'>\n<script>window.harmed = 1</script>\n```",
  "| <img src=x onerror='window.harmed = 1'> |\n|---|\n| <style>* { display: none }</style> |",
  "$\\text{<img src=x onerror='window.harmed = 1'>}$",
  "<base href='https://tracker.example/'><meta http-equiv=refresh content='0;url=https://tracker.example/'>",
  "<form action='https://tracker.example/'><input name=q autofocus></form>",
].join("\n\n");

test("a hostile answer has no effect", async () => {
  const server = await mock({ replies: { go: { text: HOSTILE, reasoning: HOSTILE } } });
  const { page, close } = await visit(browser, server.url);
  await ask(page, "go");
  await page.click("summary");
  await page.reload();
  await page.waitForSelector(".turn.assistant > .markdown p");
  assert.equal(await page.evaluate(() => window.harmed), undefined);
  const made =
    "#turns :is(script, img, svg:not(.icon), iframe, style, base, meta, object, form, [onerror], [onload])";
  assert.equal(await page.locator(made).count(), 0);
  const addresses = await page.locator("#turns a").evaluateAll((links) => links.map((link) => link.href));
  assert.ok(
    addresses.length > 0 && addresses.every((href) => href.startsWith("https://")),
    String(addresses),
  );
  const text = await page.innerText(".turn.assistant > .markdown");
  assert.ok(text.includes("<script>window.harmed = 1</script>"), "it is shown as plain text");
  assert.equal(await page.evaluate(() => document.title), "go · Sterna");
  await close();
  server.close();
});

test("the browser itself refuses HTML from text, other origins and inline code", async () => {
  const server = await mock();
  const { page, close } = await visit(browser, server.url, {
    expected: [/Trusted(HTML|Script)|Content Security Policy/],
  });
  const outcome = await page.evaluate(async () => {
    const tried = {};
    try {
      document.createElement("div").innerHTML = "<b>x</b>";
      tried.html = "done";
    } catch (error) {
      tried.html = error.name;
    }
    const script = document.createElement("script");
    try {
      script.textContent = "window.harmed = 1";
      document.body.append(script);
    } catch (error) {
      tried.script = error.name;
    }
    tried.harmed = window.harmed;
    tried.violation = await new Promise((resolve) => {
      document.addEventListener("securitypolicyviolation", ({ effectiveDirective }) => {
        if (effectiveDirective === "img-src") resolve(effectiveDirective);
      });
      const image = document.createElement("img");
      image.src = "data:image/png;base64,AAAA";
      document.body.append(image);
    });
    return tried;
  });
  assert.equal(outcome.html, "TypeError");
  assert.equal(outcome.harmed, undefined);
  assert.equal(outcome.violation, "img-src");
  await close();
  server.close();
});

test("the page asks for the server's key, says if it is wrong, and keeps it for the tab", async () => {
  const server = await mock({ key: "secret" });
  const until = "#lock[open]";
  const { page, profile, close } = await visit(browser, server.url, { until, expected: [FAILED] });
  await page.fill("#lock-key", "wrong");
  await page.press("#lock-key", "Enter");
  await page.waitForSelector("#lock[open] >> .trouble >> text=rejected the last key");
  // After closing the dialog, the user can open it again.
  await page.keyboard.press("Escape");
  assert.equal(await page.innerText("#status"), "The server asks for a key.");
  await page.click("#state-way >> text=Enter the key");
  await page.fill("#lock-key", "secret");
  await page.press("#lock-key", "Enter");
  await page.waitForSelector("#modes:not([hidden])");
  await ask(page, "Hello");
  assert.equal(await page.locator(".turn.assistant .markdown").count(), 1);
  await page.reload();
  await page.waitForSelector(".turn.assistant .markdown");
  assert.equal(await page.locator("#lock[open]").count(), 0);
  assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes("secret")), false);
  const other = await profile.newPage();
  await other.goto(server.url);
  await other.waitForSelector("#lock[open]");
  // The key changes while the page is open: the next answer fails, and the page asks again.
  server.key = "changed";
  await ask(page, "And now");
  await page.waitForSelector("#lock[open]");
  assert.equal(await note(page), "The server asks for a key.");
  await close();
  server.close();
});

test("the page says that the model is being loaded, and is ready afterwards", async () => {
  const server = await mock({ status: 503 });
  const until = "#status:not(:empty)";
  const { page, close } = await visit(browser, server.url, { until, expected: [FAILED] });
  assert.equal(await page.innerText("#status"), "The model is being loaded.");
  assert.equal(await page.locator("#send").isDisabled(), true);
  // Shown, and announced to users who cannot see it or hover over the button.
  const why = "You can send when the model is loaded.";
  assert.equal(await page.locator("#why:not(.unseen)").innerText(), why);
  assert.equal(await page.getAttribute("#send", "title"), why);
  assert.equal(await page.getAttribute("#send", "aria-describedby"), "why");
  // Waiting is not an error.
  assert.equal(await page.locator("#state.trouble").count(), 0);
  await page.fill("#prompt", "typed early");
  server.status = 200;
  await page.waitForSelector("#modes:not([hidden])");
  assert.equal(await page.innerText("#status"), "");
  assert.equal(await page.inputValue("#prompt"), "typed early");
  assert.equal(await page.getAttribute("#send", "title"), "Send");
  assert.equal(await page.textContent("#why"), "");
  await page.fill("#prompt", " ");
  assert.equal(await page.getAttribute("#send", "aria-disabled"), "true");
  assert.equal(await page.getAttribute("#send", "title"), "Write a message first");
  await ask(page, "Hello");
  assert.equal(await page.locator(".turn.assistant .note:visible").count(), 0);
  await close();
  server.close();
});

test("a broken stream keeps its text, and can be continued", async () => {
  const reply = { text: "one two three four five six", dropAfter: 2 };
  const server = await mock({ replies: { go: reply }, pieceMs: 40 });
  const { page, close } = await visit(browser, server.url, { expected: [FAILED] });
  await ask(page, "go");
  assert.equal(await note(page), "The connection ended before the answer did.");
  assert.equal((await page.innerText(".turn.assistant .markdown")).trim(), "one two three");
  server.replies.go = { text: " four five six" };
  await page.waitForFunction(() => document.getElementById("status").textContent === "");
  await page.click("text=Continue");
  await page.waitForSelector("#send:not([aria-label=Stop])");
  assert.equal((await page.innerText(".turn.assistant .markdown")).trim(), "one two three four five six");
  assert.deepEqual(server.requests.at(-1).messages.at(-1), { role: "assistant", content: "one two three" });
  await close();
  server.close();
});

test("the server's error is shown below the turn, which can be tried again", async () => {
  const replies = {
    odd: { status: 400, message: "`top_k`: expected a number" },
    long: { status: 400, message: "too long", details: { n_prompt_tokens: 5000, n_ctx: 4096 } },
    busy: { status: 429, message: "queue full", headers: { "Retry-After": "7" } },
  };
  const server = await mock({ replies });
  const { page, close } = await visit(browser, server.url, { expected: [FAILED] });
  await ask(page, "odd");
  assert.equal(await note(page), "`top_k`: expected a number");
  await ask(page, "long");
  const full = "This is 5,000 tokens long, and the context of the model holds 4,096.";
  assert.equal(await note(page), `${full} Shorten it, or begin a new conversation.`);
  server.replies.long = { text: " Now it fits." };
  await page.locator("text=Try again").last().click();
  await page.waitForSelector("text=Now it fits.");
  assert.equal(await page.locator(".versions").count(), 0, "a failure is not a version");
  await ask(page, "busy");
  assert.equal(await note(page), "The server is busy. Try again in 7 s.");
  await close();
  server.close();
});

test("errors are readable in light and dark", async () => {
  const server = await mock({ replies: { odd: { status: 400, message: "odd" } }, status: 503 });
  for (const colorScheme of ["light", "dark"]) {
    server.status = 500;
    const until = "#state.trouble";
    const { page, close } = await visit(browser, server.url, { until, expected: [FAILED], colorScheme });
    const places = ["#status", "#state-way", "#why"];
    const ratios = await page.evaluate(contrasts, places);
    server.status = 200;
    await page.waitForFunction(() => document.getElementById("status").textContent === "");
    await ask(page, "odd");
    ratios.push(...(await page.evaluate(contrasts, [".note", ".ways .outline"])));
    // WCAG's level AAA for text.
    for (const [at, ratio] of ratios.entries()) assert.ok(ratio >= 7, `${colorScheme}, ${at}: ${ratio}`);
    await close();
  }
  server.close();
});

/** Runs in the page: WCAG contrast of the last element of each selector with its background. */
function contrasts(selectors) {
  const light = (colour) => {
    const [r, g, b] = colour
      .match(/[\d.]+/g)
      .map((byte) => byte / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return selectors.map((selector) => {
    const node = [...document.querySelectorAll(selector)].at(-1);
    let backdrop = node;
    const paper = () => getComputedStyle(backdrop).backgroundColor;
    while (paper() === "rgba(0, 0, 0, 0)") backdrop = backdrop.parentElement;
    const [dark, bright] = [light(getComputedStyle(node).color), light(paper())].sort((a, b) => a - b);
    return (bright + 0.05) / (dark + 0.05);
  });
}

test("an answer that fills the context says so", async () => {
  const server = await mock({ nCtx: 10, replies: { go: { text: "word ".repeat(40) } } });
  const { page, close } = await visit(browser, server.url);
  await page.click("#open-settings");
  await page.fill("#parameter-n_predict", "9");
  await page.click("#close-settings");
  await ask(page, "go");
  assert.equal(await note(page), "The context of the model is full.");
  assert.equal(await page.innerText("#context-text"), "10 of 10 tokens");
  assert.equal(await page.locator(".notice >> text=Continue").count(), 0);
  await page.click(".notice.trouble >> text=New conversation");
  await page.waitForSelector("#empty:not([hidden])");
  await close();
  server.close();
});

test("a lost server is noticed, and found again", async () => {
  const server = await mock({ replies: { much: { text: "word\n\n".repeat(40) } } });
  const viewport = { width: 320, height: 640 };
  const { page, close } = await visit(browser, server.url, { expected: [FAILED], viewport });
  await ask(page, "much");
  // The server becomes unreachable during the request: if the page had noticed before, it could not send.
  await page.route("**/v1/**", async (route) => {
    await page.route("**/props", (poll) => poll.abort());
    await route.abort();
  });
  await ask(page, "Hello");
  assert.equal(await note(page), "The server cannot be reached.");
  await page.waitForSelector("#state.trouble >> #status >> text=cannot be reached");
  assert.equal(await page.locator("#why:not(.unseen)").innerText(), "You can send when the server is back.");
  // The status line takes space from the turns, whose end stays visible.
  assert.ok((await fromEnd(page)) < 2);
  await page.unrouteAll();
  await page.click("#state-way >> text=Try now");
  await page.waitForFunction(() => document.getElementById("status").textContent === "");
  await page.click("text=Try again");
  await page.waitForSelector("text=You said");
  await close();
  server.close();
});

test("a page that is closed in the middle of an answer keeps the text so far", async () => {
  const server = await mock({ replies: { go: { text: "word ".repeat(400), pieceMs: 10 } } });
  const { page, close } = await visit(browser, server.url);
  await page.fill("#prompt", "go");
  await page.press("#prompt", "Enter");
  await page.waitForFunction(
    () => document.querySelector(".turn.assistant .markdown")?.innerText.length > 700,
  );
  await page.reload();
  await page.waitForSelector(".turn.assistant .note");
  assert.equal(await note(page), "This answer was interrupted.");
  assert.ok((await page.innerText(".turn.assistant .markdown")).length > 300);
  await close();
  server.close();
});

test("reasoning is folded, and answers continue while another conversation is open", async () => {
  const server = await mock({
    replies: { think: { reasoning: "Let me see.", text: "Yes. ".repeat(60), pieceMs: 15 } },
  });
  const { page, close } = await visit(browser, server.url);
  await page.fill("#prompt", "think");
  await page.press("#prompt", "Enter");
  await page.waitForSelector(".reasoning:not([hidden])");
  assert.equal(await page.locator(".reasoning").evaluate((node) => node.open), false);
  await page.click("#new");
  await ask(page, "Meanwhile");
  assert.deepEqual(await page.locator(".turn.user .plain").allInnerTexts(), ["Meanwhile"]);
  await page.click("#list a >> text=think");
  await page.waitForFunction(
    () => document.querySelector(".turn.assistant > .markdown")?.innerText.trim().split(" ").length === 60,
  );
  await page.waitForSelector(".turn.assistant .tools button");
  assert.match(await page.innerText("summary"), /^Thought for \d+ s$/);
  assert.equal((await page.innerText(".turn.assistant > .markdown")).trim(), "Yes. ".repeat(60).trim());
  await close();
  server.close();
});

test("a conversation that is deleted during an answer does not come back", async () => {
  const server = await mock({ replies: { go: { text: "word ".repeat(400), pieceMs: 10 } } });
  const { page, close } = await visit(browser, server.url);
  await page.fill("#prompt", "go");
  await page.press("#prompt", "Enter");
  await page.waitForSelector(".turn.assistant .markdown >> text=word word word");
  await page.click("#title");
  await page.click("[role=menuitem] >> text=Delete");
  await page.waitForSelector("#empty:not([hidden])");
  while (server.aborted === 0) await page.waitForTimeout(20);
  assert.equal(server.aborted, 1);
  await page.reload();
  await page.waitForSelector("#modes:not([hidden])");
  assert.equal(await page.locator("#list a").count(), 0);
  await close();
  server.close();
});

test("regenerating another answer ends the one that is being written", async () => {
  const server = await mock({ replies: { go: { text: "word ".repeat(400), pieceMs: 10 } } });
  const { page, close } = await visit(browser, server.url);
  await ask(page, "Hello");
  await page.fill("#prompt", "go");
  await page.press("#prompt", "Enter");
  await page.waitForSelector(".turn.assistant >> text=word word");
  await page.locator(".turn.assistant").first().hover();
  await page.locator(".turn.assistant").first().locator("text=Regenerate").click();
  await page.waitForSelector(".versions >> text=2/2");
  await page.waitForSelector("#send:not([aria-label=Stop])");
  assert.equal(server.aborted, 1);
  assert.match(await page.innerText(".turn.assistant .markdown"), /in try 2/);
  assert.equal(await page.locator(".turn").count(), 2);
  await page.click("[aria-label='Previous version']");
  assert.equal(await note(page), "Stopped.");
  await close();
  server.close();
});

test("two tabs show the same conversations", async () => {
  const server = await mock();
  const { page, profile, close } = await visit(browser, server.url);
  const other = await profile.newPage();
  await other.goto(server.url);
  await other.waitForSelector("#modes:not([hidden])");
  await ask(page, "Hello");
  await other.click("#list a >> text=Hello");
  await other.waitForSelector(".turn.assistant .markdown");
  await ask(other, "From here");
  await page.waitForFunction(() => document.querySelectorAll(".turn").length === 4);
  await close();
  server.close();
});

test("the user picks one of several models, and the page remembers it", async () => {
  const models = ["one", "two", "three"];
  const server = await mock({ models, loaded: ["one"], loadMs: 400, broken: "three" });
  const { page, close } = await visit(browser, server.url, { expected: [FAILED] });
  const options = () => page.locator("#model option").allInnerTexts();
  await page.waitForSelector("#model:not([hidden])");
  assert.deepEqual(await options(), ["one", "two (not loaded)", "three (not loaded)"]);
  await page.selectOption("#model", "two");
  await page.waitForFunction(() => document.getElementById("status").textContent === "two is being loaded.");
  assert.equal(await page.locator("#send").isDisabled(), true);
  await page.waitForFunction(() => document.getElementById("status").textContent === "");
  assert.deepEqual(await options(), ["one", "two", "three (not loaded)"]);
  await ask(page, "Hello");
  assert.equal(server.requests.at(-1).model, "two");

  await page.reload();
  await page.waitForFunction(() => document.getElementById("model").value === "two");
  await ask(page, "Again");
  assert.equal(server.requests.at(-1).model, "two");

  await page.selectOption("#model", "three");
  const failed = "three could not be loaded: not a GGUF file";
  const waitForStatus = (words) =>
    page.waitForFunction((words) => document.getElementById("status").textContent === words, words);
  await waitForStatus(failed);
  assert.equal(await page.locator("#send").isDisabled(), true);
  assert.equal(await page.innerText("#why"), "You can send when a model is loaded.");
  await page.click("#state-way >> text=Try again");
  await waitForStatus("three is being loaded.");
  await waitForStatus(failed);
  await page.selectOption("#model", "one");
  await page.waitForFunction(() => document.getElementById("status").textContent === "");
  await ask(page, "And now");
  assert.equal(server.requests.at(-1).model, "one");

  // A model that was removed is not requested.
  await page.selectOption("#model", "two");
  await page.waitForFunction(() => document.getElementById("status").textContent === "");
  server.models = ["one", "four"];
  await page.reload();
  await page.waitForFunction(() => document.getElementById("model").value === "one");
  await ask(page, "Once more");
  assert.notEqual(server.requests.at(-1).model, "two");
  await close();
  server.close();
});

test("a long answer keeps the page responsive, and the scroll position", async () => {
  const paragraph = "Some *words* of `text` in a paragraph that is about as long as they are.\n\n";
  const server = await mock({ replies: { go: { text: paragraph.repeat(400), pieceMs: 0 } }, pieceMs: 0 });
  const { page, close } = await visit(browser, server.url);
  await page.fill("#prompt", "go");
  await page.press("#prompt", "Enter");
  await page.waitForFunction(() => document.getElementById("scroll").scrollHeight > 3000);
  // The page follows the end of a running answer until the user scrolls away.
  await page.evaluate(() => (document.getElementById("scroll").scrollTop = 100));
  await page.waitForSelector("#send:not([aria-label=Stop])", { timeout: 60_000 });
  assert.equal(await page.evaluate(() => document.getElementById("scroll").scrollTop), 100);
  assert.equal(await page.locator(".turn.assistant .markdown > p").count(), 400);
  await page.click("#to-end");
  const left = await fromEnd(page);
  assert.ok(left < 2, `${left} pixels from the end`);
  // As when a phone's keyboard opens.
  await page.setViewportSize({ width: 1280, height: 400 });
  await page.waitForFunction(() => document.getElementById("scroll").clientHeight < 400);
  await page.waitForTimeout(100);
  assert.ok((await fromEnd(page)) < 2);
  await close();
  server.close();
});
