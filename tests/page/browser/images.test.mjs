// Images of a message: chosen, pasted and dropped, shown, removed, and sent to the server.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { after, before, test } from "node:test";
import { deflateSync } from "node:zlib";
import { launch, visit } from "./browser.mjs";
import { mock } from "./mock.mjs";

let browser;
let server;

before(async () => {
  browser = await launch();
  server = await mock({ vision: true });
});

after(async () => {
  await browser?.close();
  server?.close();
});

/** A PNG of 8-bit RGB; `pixel(at)` is the byte at an index of its pixels. */
function png(width, height, pixel) {
  const rows = Buffer.alloc(height * (1 + 3 * width));
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < 3 * width; x += 1) rows[y * (1 + 3 * width) + 1 + x] = pixel(y * 3 * width + x);
  }
  const chunk = (type, data) => {
    const body = Buffer.concat([Buffer.from(type, "latin1"), data]);
    const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
    length.writeUInt32BE(data.length);
    sum.writeUInt32BE(crc32(body));
    return Buffer.concat([length, body, sum]);
  };
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([8, 2, 0, 0, 0], 8);
  const signature = Buffer.from("89504e470d0a1a0a", "hex");
  const data = [chunk("IHDR", header), chunk("IDAT", deflateSync(rows, { level: 1 }))];
  return Buffer.concat([signature, ...data, chunk("IEND", Buffer.alloc(0))]);
}

function crc32(bytes) {
  let sum = ~0;
  for (const byte of bytes) {
    sum ^= byte;
    for (let bit = 0; bit < 8; bit += 1) sum = sum & 1 ? (sum >>> 1) ^ 0xedb88320 : sum >>> 1;
  }
  return ~sum >>> 0;
}

/** Two pixels of one colour. */
const plain = (...rgb) => png(2, 1, (at) => rgb[at % 3]);
const RED = plain(255, 0, 0);
const GREEN = plain(0, 255, 0);
const BLUE = plain(0, 0, 255);

const file = (name, buffer, mimeType = "image/png") => ({ name, mimeType, buffer });
const urlOf = (buffer) => `data:image/png;base64,${buffer.toString("base64")}`;
const part = (url) => ({ type: "image_url", image_url: { url } });

/** Dispatches a paste or a drop with these files, and with texts by their types. */
function give(page, type, target, files, texts = {}) {
  const sent = files.map(({ name, mimeType, buffer }) => [name, mimeType, buffer.toString("base64")]);
  return page.evaluate(
    ([type, target, sent, texts]) => {
      const data = new DataTransfer();
      for (const [kind, text] of Object.entries(texts)) data.setData(kind, text);
      for (const [name, mime, base64] of sent) {
        const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
        data.items.add(new File([bytes], name, { type: mime }));
      }
      const options = { bubbles: true, cancelable: true };
      const event =
        type === "paste"
          ? new ClipboardEvent(type, { ...options, clipboardData: data })
          : new DragEvent(type, { ...options, dataTransfer: data });
      return document.querySelector(target).dispatchEvent(event);
    },
    [type, target, sent, texts],
  );
}

/** Waits until the message has `n` images. */
const has = (page, n) =>
  page.waitForFunction((n) => document.querySelectorAll("#attachments img").length === n, n);

/** Sends what is in the field, and returns the messages that the server got. */
async function sent(page) {
  const before = server.requests.length;
  await page.press("#prompt", "Enter");
  await page.waitForSelector("#send:not([aria-label=Stop])");
  assert.equal(server.requests.length, before + 1);
  return server.requests.at(-1).messages;
}

/** Width, height, and the first pixel of an image in the page. */
const decoded = (page, url) =>
  page.evaluate(async (url) => {
    const image = new Image();
    image.src = url;
    await image.decode();
    const canvas = new OffscreenCanvas(1, 1);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    return [image.naturalWidth, image.naturalHeight, ...context.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  }, url);

test("images are chosen, pasted and dropped, shown, removed, and sent in order", async () => {
  const { page, close } = await visit(browser, server.url);
  assert.equal(await page.isVisible("#attach"), true);
  assert.equal(await page.isVisible("#attachments"), false);
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), page.click("#attach")]);
  await chooser.setFiles([file("red.png", RED), file("other.png", GREEN)]);
  await has(page, 2);
  // A paste is the image's, and leaves no text in the field.
  assert.equal(await give(page, "paste", "#prompt", [file("green.png", GREEN)]), false);
  await has(page, 3);
  // The browser would open a dropped file.
  assert.equal(await give(page, "dragover", "#turns", [file("blue.png", BLUE)]), false);
  assert.equal(await give(page, "drop", "#turns", [file("blue.png", BLUE)]), false);
  await has(page, 4);
  const shown = await page.locator("#attachments img").evaluateAll((all) => all.map(({ src }) => src));
  assert.deepEqual(shown, [RED, GREEN, GREEN, BLUE].map(urlOf));
  assert.equal(await page.inputValue("#prompt"), "");

  await page.click("#attachments >> [aria-label='Remove image 2']");
  await has(page, 3);
  await page.fill("#prompt", "What are these?");
  const images = [RED, GREEN, BLUE].map(urlOf);
  const content = [...images.map(part), { type: "text", text: "What are these?" }];
  assert.deepEqual(await sent(page), [{ role: "user", content }]);
  assert.equal(await page.isVisible("#attachments"), false);
  const inTurn = page.locator(".turn.user .pictures img");
  assert.deepEqual(await inTurn.evaluateAll((all) => all.map(({ src }) => src)), images);

  // Later messages have the images of earlier ones, also after a reload; a message may be only an image.
  await page.reload();
  await page.waitForSelector(".turn.user .pictures img");
  await page.setInputFiles("#attach-file", file("red.png", RED));
  await has(page, 1);
  const [first, , last] = await sent(page);
  assert.deepEqual(first, { role: "user", content });
  assert.deepEqual(last, { role: "user", content: [part(urlOf(RED))] });
  await close();
});

test("an image from the clipboard is pasted with the keys", async () => {
  const { page, profile, close } = await visit(browser, server.url);
  await profile.grantPermissions(["clipboard-read", "clipboard-write"]);
  await page.evaluate(async (base64) => {
    const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
    const blob = new Blob([bytes], { type: "image/png" });
    await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
  }, GREEN.toString("base64"));
  await page.focus("#prompt");
  await page.keyboard.press("ControlOrMeta+V");
  await has(page, 1);
  const [{ content }] = await sent(page);
  // The clipboard may encode it again.
  assert.deepEqual(await decoded(page, content[0].image_url.url), [2, 1, 0, 255, 0]);
  await close();
});

test("text with a picture of itself is pasted as text", async () => {
  const { page, close } = await visit(browser, server.url);
  const texts = { "text/html": "<b>cells</b>", "text/plain": "cells" };
  assert.equal(await give(page, "paste", "#prompt", [file("cells.png", RED)], texts), true);
  assert.equal(await give(page, "paste", "#prompt", [file("a.txt", RED, "text/plain")]), true);
  const copied = { "text/html": "<img src='x'>" };
  assert.equal(await give(page, "paste", "#prompt", [file("image.png", RED)], copied), false);
  await has(page, 1);
  await close();
});

test("large pictures are made smaller, and unusual formats are converted", async () => {
  const { page, close } = await visit(browser, server.url);
  const bytes = randomBytes(3 * 4096 * 256);
  const noise = png(4096, 256, (at) => bytes[at]);
  assert.ok(noise.length > 1 << 20, String(noise.length));
  const svg = Buffer.from(
    "<svg xmlns='http://www.w3.org/2000/svg' width='30' height='20'><rect width='9' height='9'/></svg>",
  );
  await page.setInputFiles("#attach-file", file("noise.png", noise));
  await has(page, 1);
  const [{ content }] = await sent(page);
  const { url } = content[0].image_url;
  assert.match(url, /^data:image\/jpeg;base64,/);
  assert.deepEqual((await decoded(page, url)).slice(0, 2), [2048, 128]);
  assert.ok(url.length < noise.length, String(url.length));
  await page.setInputFiles("#attach-file", file("a.svg", svg, "image/svg+xml"));
  await page.waitForSelector("#toast .trouble >> text=a.svg is not an image that this browser can read");
  await close();
});

test("what is no image is named, and added by no way", async () => {
  const { page, close } = await visit(browser, server.url);
  await page.setInputFiles("#attach-file", file("cut.png", RED.subarray(0, 40)));
  await page.waitForSelector("#toast .trouble >> text=cut.png is not an image that this browser can read");
  await give(page, "drop", "#turns", [file("a.txt", RED, "text/plain"), file("red.png", RED)]);
  await page.waitForSelector("#toast .trouble >> text=Only images can be added");
  await has(page, 1);
  await close();
});

test("a model without a vision tower takes no images", async () => {
  const blind = await mock();
  const { page, close } = await visit(browser, blind.url);
  assert.equal(await page.isVisible("#attach"), false);
  for (const way of ["paste", "drop"]) {
    assert.equal(await give(page, way, "#prompt", [file("red.png", RED)]), false);
    await page.waitForSelector("#toast .trouble >> text=the server has to be started with its mmproj file");
    await page.evaluate(() => document.getElementById("toast").replaceChildren());
  }
  assert.equal(await page.locator("#attachments img").count(), 0);
  await close();
  blind.close();
});

test("a text takes no images", async () => {
  const { page, close } = await visit(browser, server.url);
  await page.setInputFiles("#attach-file", file("red.png", RED));
  await has(page, 1);
  await page.click("#modes [data-mode=text]");
  await has(page, 0);
  assert.equal(await page.isVisible("#attach"), false);
  await give(page, "drop", "#turns", [file("red.png", RED)]);
  await page.waitForSelector("#toast .trouble >> text=Images belong into a chat");
  await close();
});
