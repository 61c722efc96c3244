import assert from "node:assert/strict";
import { test } from "node:test";
import * as tree from "../../../src/serve/page/conversation.mjs";
import { exported, imported } from "../../../src/serve/page/transfer.mjs";

const texts = (conversation) => tree.pathOf(conversation).map(({ text }) => text);

/** A conversation that alternates between turns of the user and the model. */
function conversationOf(mode, ...turns) {
  const conversation = tree.newConversation(mode);
  let parent = null;
  for (const [at, text] of turns.entries()) {
    parent = tree.addTurn(conversation, parent, at % 2 === 0 ? "user" : "assistant", text).id;
  }
  return conversation;
}

test("an edit is a new version of the turn, and the old version comes back with its replies", () => {
  const conversation = conversationOf("chat", "a", "b", "c", "d");
  const third = tree.pathOf(conversation)[2];
  const edited = tree.addTurn(conversation, third.parent, "user", "C");
  tree.addTurn(conversation, edited.id, "assistant", "D");
  assert.deepEqual(texts(conversation), ["a", "b", "C", "D"]);
  assert.deepEqual(tree.versionOf(conversation, edited), { number: 2, count: 2 });
  tree.chooseVersion(conversation, edited, -1);
  assert.deepEqual(texts(conversation), ["a", "b", "c", "d"]);
  tree.chooseVersion(conversation, third, -1);
  assert.deepEqual(texts(conversation), ["a", "b", "c", "d"], "there is nothing before the first version");
  tree.chooseVersion(conversation, third, 1);
  assert.deepEqual(texts(conversation), ["a", "b", "C", "D"]);
});

test("a branch has the visible turns, and is another conversation", () => {
  const conversation = conversationOf("chat", "a", "b", "c");
  conversation.system = "s";
  const second = tree.pathOf(conversation)[1];
  second.timings = { predicted_n: 3 };
  const branch = tree.branchOf(conversation, second);
  assert.deepEqual(texts(branch), ["a", "b"]);
  assert.equal(branch.system, "s");
  assert.deepEqual(tree.pathOf(branch)[1].timings, { predicted_n: 3 });
  assert.notEqual(branch.id, conversation.id);
  assert.notEqual(tree.pathOf(branch)[1].id, second.id);
  assert.deepEqual(texts(conversation), ["a", "b", "c"]);
});

test("messages begin with the system prompt, if there is one", () => {
  const conversation = conversationOf("chat", "a", "b");
  const turns = tree.pathOf(conversation);
  assert.deepEqual(tree.messagesOf(conversation, turns), [
    { role: "user", content: "a" },
    { role: "assistant", content: "b" },
  ]);
  conversation.system = " s ";
  assert.deepEqual(tree.messagesOf(conversation, turns)[0], { role: "system", content: "s" });
});

test("images are before the text of their message, and are kept in files", () => {
  const conversation = conversationOf("chat", "a", "b");
  const [first] = tree.pathOf(conversation);
  const url = "data:image/png;base64,AAAA";
  first.images = [url];
  const part = { type: "image_url", image_url: { url } };
  const [message] = tree.messagesOf(conversation, tree.pathOf(conversation));
  assert.deepEqual(message.content, [part, { type: "text", text: "a" }]);
  const [copy] = imported(exported([conversation]));
  assert.deepEqual(copy, conversation);
  assert.deepEqual(tree.pathOf(tree.branchOf(conversation, first))[0].images, [url]);
  first.text = "";
  assert.deepEqual(tree.messagesOf(conversation, [first])[0].content, [part]);
  for (const wrong of ["data:text/html,x", "data:image/png;base64,<", 3]) {
    first.images = [wrong];
    assert.throws(() => imported(exported([conversation])), /images\[0\]/);
  }
});

test("rewriting a text keeps the passages up to the change", () => {
  const written = ["Once ", "upon a time ", "there was ", "a king."];
  const cases = [
    ["Once upon a time there was a king.", ["Once ", "upon a time ", "there was ", "a king."]],
    ["Once upon a time there was a king. He", [...written, " He"]],
    ["Once upon a time there is", ["Once ", "upon a time ", "there is"]],
    ["Never", ["Never"]],
    ["Once upon a time ", ["Once ", "upon a time ", ""]],
    ["", [""]],
  ];
  for (const [text, expected] of cases) {
    const conversation = conversationOf("text", ...written);
    const last = tree.rewrite(conversation, text);
    assert.deepEqual(texts(conversation), expected);
    assert.equal(tree.wholeText(tree.pathOf(conversation)), text);
    assert.equal(tree.pathOf(conversation).at(-1), last);
    tree.rewrite(conversation, text);
    assert.deepEqual(texts(conversation), expected, "the same text changes nothing");
    const shared = tree.pathOf(conversation).filter((turn) => written.includes(turn.text)).length;
    if (shared === written.length || expected.length > written.length) continue;
    tree.chooseVersion(conversation, tree.pathOf(conversation)[shared], -1);
    assert.deepEqual(texts(conversation), written, "the old text is a version");
  }
});

test("titles are derived from the first turn, and conversations can be searched", () => {
  const conversation = conversationOf(
    "chat",
    "  How do\nterns find  their way over the whole ocean, from pole to pole? ",
  );
  assert.equal(tree.titleOf(conversation), "How do terns find their way over the whole…");
  assert.equal(tree.titleOf(tree.newConversation("text")), "New text");
  conversation.title = "Birds";
  assert.equal(tree.titleOf(conversation), "Birds");
  for (const [query, found] of [
    ["", true],
    ["bird POLE", true],
    ["terns  ocean", true],
    ["penguin", false],
  ]) {
    assert.equal(tree.matches(conversation, query), found, query);
  }
});

test("an export is imported without changes", () => {
  const conversation = conversationOf("chat", "a", "b");
  const turn = tree.pathOf(conversation)[1];
  Object.assign(turn, { finish: "stop", reasoning: "r", reasoningMs: 5, timings: { predicted_n: 1 } });
  tree.addTurn(conversation, turn.parent, "assistant", "B");
  const other = conversationOf("text", "x");
  assert.deepEqual(imported(exported([conversation, other])), [conversation, other]);
});

test("an invalid export is refused with a specific error", () => {
  const file = (change) => {
    const value = JSON.parse(exported([conversationOf("chat", "a", "b")]));
    change(value, value.conversations[0], Object.values(value.conversations[0].turns));
    return JSON.stringify(value);
  };
  const cases = [
    ["{", /not JSON/],
    ["null", /no export/],
    ["[]", /no export/],
    [file((value) => (value.version = 2)), /version 2; this page reads version 1/],
    [file((value) => (value.conversations = {})), /not a list/],
    [file((_, c) => (c.mode = "x")), /conversations\[0\]\.mode is "x", not one of chat, text/],
    [file((_, c) => (c.title = 4)), /title is not a string/],
    [file((_, c) => (c.id = "<b>")), /id is not an id/],
    [file((_, c) => (c.chosen = 1)), /chosen is 1, not one of 0 to 0/],
    [file((_, c) => (c.children = ["gone"])), /has another parent/],
    [file((_, c) => (c.turns = [])), /turns is not an object/],
    [file((_, c) => (c.turns["x-1"] = null)), /turns\.x-1 is not an object/],
    [file((_, c, [turn]) => (c.children = [turn.id, turn.id])), /twice/],
    [file((_, c, [turn]) => (turn.role = "system")), /role is "system"/],
    [file((_, c, [turn]) => (turn.timings = 4)), /timings is not an object/],
    // Two turns that are each other's parent.
    [
      file((_, c, [a, b]) => {
        c.children = [];
        a.parent = b.id;
        b.children = [a.id];
      }),
      /cannot be reached/,
    ],
  ];
  for (const [text, message] of cases) assert.throws(() => imported(text), message, text);
});

test("an import drops unknown fields", () => {
  const value = JSON.parse(exported([conversationOf("chat", "a")]));
  value.conversations[0].extra = 1;
  Object.values(value.conversations[0].turns)[0].onclick = "alert(1)";
  const text = JSON.stringify(value).replace('"turns":{', '"turns":{"__proto__":{"text":"x"},');
  assert.throws(() => imported(text), /is not an id/);
  const [conversation] = imported(JSON.stringify(value));
  assert.equal(conversation.extra, undefined);
  assert.equal(tree.pathOf(conversation)[0].onclick, undefined);
});
