// Rules for all files of the page.

import assert from "node:assert/strict";
import { readFile, readdir } from "node:fs/promises";
import { test } from "node:test";

const PAGE = new URL("../../../src/serve/page/", import.meta.url);
const TESTS = new URL("../", import.meta.url);
const names = await readdir(PAGE);
const texts = new Map();
for (const name of names) texts.set(name, await readFile(new URL(name, PAGE), "utf8"));
const scripts = [...texts].filter(([name]) => /\.m?js$/.test(name));

test("the program's list has every file and no others", () => {
  const listed = [...texts.get("mod.rs").matchAll(/asset\("(.*?)", .*?, include_bytes!\("(.*?)"\)\)/g)];
  const served = listed.map(([, , name]) => name).sort();
  assert.deepEqual(served, names.filter((name) => name !== "mod.rs").sort());
  for (const [, path, name] of listed) assert.equal(path, name === "index.html" ? "/" : `/page/${name}`);
});

test("all imported and linked files exist", () => {
  for (const [name, text] of scripts) {
    for (const [, path] of text.matchAll(/from "(.*?)"/g))
      assert.ok(texts.has(path.replace("./", "")), `${name}: ${path}`);
  }
  for (const [, path] of texts.get("index.html").matchAll(/(?:src|href)="(.*?)"/g)) {
    assert.ok(texts.has(path.replace("page/", "")), path);
  }
});

test("all imported names are exported", () => {
  for (const [name, text] of scripts) {
    for (const [, list, path] of text.matchAll(/import \{([^}]*)\} from "\.\/(.*?)"/g)) {
      for (const item of list
        .split(",")
        .map((word) => word.trim())
        .filter(Boolean)) {
        const exported = new RegExp(
          `export (?:const|class|function|async function\\*?|function\\*) ${item}\\b`,
        );
        assert.match(texts.get(path), exported, `${name} imports ${item} from ${path}`);
      }
    }
  }
});

test("all ids that scripts use are in the page", () => {
  const ids = new Set([...texts.get("index.html").matchAll(/\bid="(.*?)"/g)].map(([, id]) => id));
  for (const [name, text] of scripts) {
    for (const [, id] of text.matchAll(/(?:\$|getElementById)\("([\w-]+)"\)/g))
      assert.ok(ids.has(id), `${name}: ${id}`);
  }
});

test("no script makes HTML or code from text, and no file names another server", () => {
  const forbidden =
    /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|srcdoc|setHTML/;
  for (const [name, text] of scripts) {
    assert.doesNotMatch(text, forbidden, name);
    assert.doesNotMatch(text, /setTimeout\(["'`]/, name);
    const servers = [...text.matchAll(/https?:\/\/[\w.]+/g)].map(([found]) => found);
    assert.deepEqual(
      servers.filter((found) => !found.startsWith("http://www.w3.org")),
      [],
      name,
    );
  }
  assert.doesNotMatch(
    texts.get("index.html"),
    /\son\w+=|\sstyle=|<style|https?:|<script(?! (?:type="module" )?src="page\/)/,
  );
  const sheets = [...texts].filter(([name]) => name.endsWith(".css"));
  for (const [name, text] of sheets) assert.doesNotMatch(text, /url\(|@import/, name);
});

test("lines end at 110 columns", async () => {
  const all = new Map(texts);
  for (const folder of ["unit/", "browser/"]) {
    for (const name of await readdir(new URL(folder, TESTS))) {
      all.set(folder + name, await readFile(new URL(folder + name, TESTS), "utf8"));
    }
  }
  for (const [name, text] of all) {
    for (const [at, line] of text.split("\n").entries())
      assert.ok([...line].length <= 110, `${name}:${at + 1}: ${line}`);
  }
});
