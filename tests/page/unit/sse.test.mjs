import assert from "node:assert/strict";
import { test } from "node:test";
import { EventReader, eventsOf } from "../../../src/serve/page/sse.mjs";

const read = (...pieces) => {
  const reader = new EventReader();
  return pieces.flatMap((piece) => reader.push(piece));
};

test("an event is its data lines, and ends at a blank line", () => {
  assert.deepEqual(read('data: {"a":1}\n\n'), [{ event: "message", data: '{"a":1}' }]);
  assert.deepEqual(read("data: a\ndata: b\n\n"), [{ event: "message", data: "a\nb" }]);
  assert.deepEqual(read("event: error\ndata:x\nid: 4\nretry: 5\n\n"), [{ event: "error", data: "x" }]);
  assert.deepEqual(read("data\n\n"), [{ event: "message", data: "" }]);
  assert.deepEqual(read("data: lost"), []);
});

test("comments and events without data are ignored", () => {
  assert.deepEqual(read(":\n\n", ": still here\n\n", "event: ping\n\n", "data: a\n\n"), [
    { event: "message", data: "a" },
  ]);
});

test("all three kinds of line ends, cut anywhere, give the same events", () => {
  const text =
    "\uFEFFdata: one\r\ndata: two\r\n\r\n:c\rdata: three\r\rdata:  four é\n\nevent: e\ndata: five\n\n";
  const whole = read(text);
  assert.deepEqual(
    whole.map(({ data }) => data),
    ["one\ntwo", "three", " four é", "five"],
  );
  for (let at = 0; at <= text.length; at += 1) {
    assert.deepEqual(read(text.slice(0, at), text.slice(at)), whole, `cut at ${at}`);
    assert.deepEqual(
      read(text.slice(0, at), "", text.slice(at)),
      whole,
      `cut at ${at}, with an empty piece`,
    );
  }
  assert.deepEqual(read(...text), whole);
});

test("a character cut between two chunks stays whole", async () => {
  const bytes = new TextEncoder().encode("data: Grüße 🐦\n\n");
  for (let at = 0; at <= bytes.length; at += 1) {
    const body = new ReadableStream({
      start(controller) {
        for (const part of [bytes.slice(0, at), bytes.slice(at)]) controller.enqueue(part);
        controller.close();
      },
    });
    const events = [];
    for await (const event of eventsOf(body)) events.push(event.data);
    assert.deepEqual(events, ["Grüße 🐦"]);
  }
});

test("leaving the loop cancels the body, so that the server sees the stop", async () => {
  let cancelled = false;
  const body = new ReadableStream({
    pull: (controller) => controller.enqueue(new TextEncoder().encode("data: a\n\n")),
    cancel: () => {
      cancelled = true;
    },
  });
  for await (const event of eventsOf(body)) {
    assert.equal(event.data, "a");
    break;
  }
  assert.ok(cancelled);
});

test("a long line in many pieces takes linear time", () => {
  const seconds = (pieces) => {
    const reader = new EventReader();
    reader.push("data: ");
    const start = performance.now();
    for (let n = 0; n < pieces; n += 1) reader.push("0123456789");
    const [event] = reader.push("\n\n");
    assert.equal(event.data.length, 10 * pieces);
    return performance.now() - start;
  };
  seconds(1000);
  // Quadratic time would be 25 minutes.
  assert.ok(seconds(1_000_000) < 5000);
});
