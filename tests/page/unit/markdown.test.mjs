import assert from "node:assert/strict";
import { before, test } from "node:test";
import { GrowingText, render } from "../../../src/serve/page/render.mjs";
import { safeLink } from "../../../src/serve/page/inline.mjs";
import { all, depth, markup, standIn } from "./stand-in.mjs";

before(() => (globalThis.document = standIn));

const html = (text) => render(text).map(markup).join("");
const link = 'target="_blank" rel="noopener noreferrer nofollow"';

/** Texts and the expected markup. */
const CASES = [
  ["plain", "<p>plain</p>"],
  ["two\nlines", "<p>two<br></br>lines</p>"],
  ["one\n\ntwo", "<p>one</p><p>two</p>"],
  [
    "*a* _b_ **c** __d__ ***e*** ~~f~~",
    "<p><em>a</em> <em>b</em> <strong>c</strong> <strong>d</strong> " +
      "<em><strong>e</strong></em> <del>f</del></p>",
  ],
  ["**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"],
  ["snake_case_name 2 * 3 * 4 **", "<p>snake_case_name 2 * 3 * 4 **</p>"],
  ["*open **and `not * closed`", "<p>*open **and <code>not * closed</code></p>"],
  ["\\*a\\* \\` \\z", "<p>*a* ` \\z</p>"],
  ["`` a`b `` and `x", "<p><code>a`b</code> and `x</p>"],
  ["\\`` b ``", "<p>`` b ``</p>"],
  ["&lt;b&gt; &amp;amp; &copy;", "<p>&lt;b> &amp;amp; &amp;copy;</p>"],
  ["# One #\n## Two\n####### no", "<h3>One</h3><h4>Two</h4><p>####### no</p>"],
  ["a\n---\nb", "<p>a</p><hr></hr><p>b</p>"],
  ["> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"],
  ["- a\n- b\n  - c\n* d", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><ul><li>d</li></ul>"],
  ["1. a\n  - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"],
  ["3) a\n\n4) b", '<ol start="3"><li><p>a</p></li><li><p>b</p></li></ol>'],
  ["- a\nwrapped\n\n  more", "<ul><li><p>a<br></br>wrapped</p><p>more</p></li></ul>"],
  ["The year\n1984. was\n1. one", "<p>The year<br></br>1984. was</p><ol><li>one</li></ol>"],
  [
    "- [x] a\n- [ ] b",
    '<ul><li class="task"><input type="checkbox" disabled="" checked=""></input>a</li>' +
      '<li class="task"><input type="checkbox" disabled=""></input>b</li></ul>',
  ],
  ['[a *b*](https://x.org/y_(z) "t")', `<p><a href="https://x.org/y_(z)" ${link}>a <em>b</em></a></p>`],
  ["see https://x.org/a_b, ok", `<p>see <a href="https://x.org/a_b" ${link}>https://x.org/a_b</a>, ok</p>`],
  ["(https://x.org/a)", `<p>(<a href="https://x.org/a" ${link}>https://x.org/a</a>)</p>`],
  ["[https://x.org](https://y.org)", `<p><a href="https://y.org/" ${link}>https://x.org</a></p>`],
  ["<mailto:a@b.org>", `<p><a href="mailto:a@b.org" ${link}>a@b.org</a></p>`],
  [
    "[a [b](https://x.org) c](https://y.org)",
    `<p>[a <a href="https://x.org/" ${link}>b</a> c](` +
      `<a href="https://y.org/" ${link}>https://y.org</a>)</p>`,
  ],
  ["*a [b*](https://x.org)", `<p>*a <a href="https://x.org/" ${link}>b*</a></p>`],
  // An image becomes a link: loading it would reveal the reader to its server.
  ["![pic](https://x.org/p.png)", `<p><a href="https://x.org/p.png" ${link}>pic</a></p>`],
  ["it costs $5 and $10", "<p>it costs $5 and $10</p>"],
];

test("Markdown constructs give the expected markup", () => {
  for (const [text, expected] of CASES) assert.equal(html(text), expected, text);
});

test("code", () => {
  const code = (text) => {
    const [figure, ...rest] = render(text);
    return {
      language: figure.childNodes[0].childNodes[0].textContent,
      text: figure.childNodes[1].textContent,
      rest,
    };
  };
  const block = code("```js\nlet a = '<b>';\n```\nafter");
  assert.deepEqual([block.language, block.text, block.rest.length], ["js", "let a = '<b>';", 1]);
  assert.equal(code("~~~\n```\n~~~").text, "```");
  assert.equal(code("````md\n```\nx\n```\n````").text, "```\nx\n```");
  assert.equal(code("```py\nstill open\n\n# no heading").text, "still open\n\n# no heading");
  assert.equal(render("- a\n  ```\n  x\n    y\n  ```")[0].textContent, "atextCopyx\n  y");
});

test("tables", () => {
  const [node, ...rest] = render(
    "before\n| a | b |\n|:--|--:|\n| 1 | `x\\|y` | extra |\n| only |\n\nafter",
  );
  assert.equal(markup(node), "<p>before</p>");
  const [table, after] = rest;
  assert.match(
    markup(table),
    /<tr><td class="align-left">1<\/td><td class="align-right"><code>x\|y<\/code><\/td><\/tr>/,
  );
  assert.match(markup(table), /<tr><td class="align-left">only<\/td><\/tr>/);
  assert.equal(markup(after), "<p>after</p>");
  // Mismatched header and delimiter rows, or no delimiter row.
  for (const broken of ["| a | b |\n|---|", "| a |\n| b |", "a | b\n--- | -x-", "|\n|-|-|"]) {
    assert.equal(render(broken).filter(({ name }) => name === "div").length, 0, broken);
  }
});

test("formulas", () => {
  const [p] = render("so $x_i^2$ and \\(\\frac{a}{b}\\)");
  assert.match(markup(p), /<msubsup><mi>x<\/mi><mi>i<\/mi><mn>2<\/mn><\/msubsup>/);
  assert.match(markup(p), /<mfrac><mi>a<\/mi><mi>b<\/mi><\/mfrac>/);
  const [block] = render(
    "$$\n\\sum_{k=1}^n \\left( k \\right) = \\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}\n$$",
  );
  assert.match(markup(block), /^<div class="formula"><math display="block"/);
  assert.match(markup(block), /<mtr><mtd><mn>3<\/mn><\/mtd><mtd><mn>4<\/mn><\/mtd><\/mtr>/);
  // Commands that are not in the tables stay as written.
  for (const unknown of [
    "\\unknown{x}",
    "{a",
    "a}",
    "x^",
    "\\frac{a}",
    "\\begin{matrix} a",
    "a & b",
    "x^2^3",
  ]) {
    assert.equal(
      html(`$$${unknown}$$`),
      `<div class="formula"><code class="tex">${unknown.replace("&", "&amp;")}</code></div>`,
    );
  }
});

test("only http, https and mailto become links", () => {
  const refused = [
    "javascript:alert(1)",
    " JaVaScRiPt:alert(1)",
    "java\nscript:alert(1)",
    "data:text/html,x",
    "vbscript:x",
    "//x.org",
    "/props",
    "?q",
    "#a",
    "file:///etc/passwd",
    "\u0001javascript:alert(1)",
    "",
    "x",
  ];
  for (const address of refused) {
    assert.equal(safeLink(address), null, address);
    const nodes = render(`[a](${address}) [a](<${address}>) <${address}>`).flatMap(all);
    assert.deepEqual(
      nodes.filter(({ name }) => name === "a"),
      [],
      address,
    );
  }
  assert.equal(safeLink("HTTPS://X.org"), "https://x.org/");
});

const HOSTILE = [
  "<script>alert(1)</script>",
  "<img src=x onerror=alert(1)>",
  '<a href="javascript:alert(1)">x</a>',
  "[x](javascript:alert(1)) ![x](data:image/svg+xml,<svg onload=alert(1)>)",
  '[x](https://a.b/" onclick="alert(1))',
  "```html onload=alert(1)\n<script>alert(1)</script>\n```",
  "| <script> | b |\n|---|---|\n| <iframe src=//x.org> | <style>*{}</style> |",
  "$\\text{<script>alert(1)</script>}$ $\\href{javascript:alert(1)}{x}$",
  "<svg><animate onbegin=alert(1)></svg> &lt;script&gt;alert(1)&lt;/script&gt;",
  "\u202Egnp.exe\u0000\uFFFF\uD800",
];
const SAFE =
  "p br em strong del code a h3 h4 h5 h6 hr blockquote ul ol li input div table thead tbody tr th td " +
  "figure figcaption span button pre math mrow mi mn mo mtext mspace mfrac msup msub msubsup munder " +
  "mover munderover msqrt mroot mtable mtr mtd";
const ATTRIBUTES =
  "href target rel class type disabled checked start tabindex role aria-label display width accent " +
  "largeop movablelimits stretchy fence linethickness mathvariant";

test("any text gives only harmless elements and attributes", () => {
  const [elements, attributes] = [new Set(SAFE.split(" ")), new Set(ATTRIBUTES.split(" "))];
  const texts = [...HOSTILE, ...randomTexts(400)];
  for (const text of texts) {
    for (const element of render(text).flatMap(all)) {
      assert.ok(elements.has(element.name), `<${element.name}> of ${JSON.stringify(text)}`);
      for (const [name, value] of element.attributes) {
        assert.ok(attributes.has(name), `${name} of ${JSON.stringify(text)}`);
        if (name === "href") assert.match(value, /^(https?:\/\/|mailto:)/);
      }
      if (element.name === "a") assert.match(element.attributes.get("rel"), /noopener/);
    }
  }
});

/** Random combinations of significant pieces, the same in every run. */
function randomTexts(count) {
  const pieces = [
    "*",
    "**",
    "_",
    "~~",
    "`",
    "```",
    "\n",
    "\n\n",
    "- ",
    "1. ",
    "> ",
    "# ",
    "| a |",
    "\n|---|\n",
    "[",
    "](",
    "https://x.org",
    ")",
    "(",
    "<",
    ">",
    "$",
    "$$",
    "\\[",
    "\\]",
    "\\(",
    "\\)",
    "\\",
    " ",
    "  ",
    "    ",
    "word",
    "\\frac{",
    "}",
    "^",
    "&",
    "---",
    "![",
    "\r\n",
    "\t",
    "é",
    "javascript:",
    "1.",
    "+ ",
    "[x] ",
    "~~~",
  ];
  let state = 7;
  const next = (limit) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
  return Array.from({ length: count }, () =>
    Array.from({ length: next(60) }, () => pieces[next(pieces.length)]).join(""),
  );
}

test("growing text gives the markup of the whole text, wherever it was cut", () => {
  const texts = [
    ...CASES.map(([text]) => text),
    CASES.map(([text]) => text).join("\n\n"),
    ...HOSTILE,
    ...randomTexts(400),
  ];
  for (const text of texts) {
    const whole = html(text);
    for (const step of [1, 3, 17]) {
      const root = standIn.createElement("div");
      const growing = new GrowingText(root);
      for (let end = 0; end < text.length; end += step) growing.show(text.slice(0, end));
      growing.show(text);
      assert.equal(root.childNodes.map(markup).join(""), whole, `${JSON.stringify(text)} by ${step}`);
    }
  }
});

test("a finished block is not rendered again", () => {
  const root = standIn.createElement("div");
  const growing = new GrowingText(root);
  growing.show("one\n\ntwo\n\nthr");
  const [first] = root.childNodes;
  growing.show("one\n\ntwo\n\nthree\n\nfour\nfive\n");
  assert.equal(root.childNodes[0], first);
  // A code block keeps its node while it grows.
  growing.show("one\n\ntwo\n\nthree\n\nfour\nfive\n\n```js\nlet a = 1;\n");
  const code = root.lastChild;
  growing.show("one\n\ntwo\n\nthree\n\nfour\nfive\n\n```js\nlet a = 1;\nlet b");
  assert.equal(root.lastChild, code);
  assert.match(code.textContent, /let a = 1;\nlet b$/);
});

const MB = 1_000_000;
const fill = (text, size = MB) => text.repeat(Math.ceil(size / text.length)).slice(0, size);
/** One megabyte each; a quarter where most of the time is spent creating elements. */
const LONG = {
  "a word": fill("a"),
  words: fill("word "),
  spaces: `a${fill(" ")}b`,
  stars: fill("*"),
  "open emphasis": fill("*a "),
  "emphasis in emphasis": fill("*a **b "),
  "closing emphasis": `${"*a ".repeat(MB / 8)}${"b* ".repeat(MB / 8)}`,
  underscores: fill("_a"),
  "open brackets": fill("["),
  "links without an end": fill("[a]("),
  "closing brackets": `${fill("[")}${"](".repeat(1000)}`,
  "links with a space": `${"[x](a".repeat(MB / 6)} ${")".repeat(MB / 6)}`,
  "images in links": fill("![[a](b)"),
  ticks: Array.from({ length: 1400 }, (_, n) => "`".repeat(n)).join(" "),
  "ticks in pairs": fill("` `` "),
  angles: fill("<http://a"),
  "line breaks": fill("<br "),
  addresses: fill("http://a.b/c) "),
  "addresses with brackets": `https://${fill(")")}`,
  dollars: fill("$"),
  formulas: fill("$a$", MB / 4),
  "formulas without an end": fill("\\(a "),
  "display formulas": fill("\\[ a\n", MB / 4),
  "display formulas and no more": `${fill("\\[ a\n", MB / 4)}\n\nend`,
  fences: `\`\`\`${fill("a")}\``,
  tildes: `${fill("~")}\``,
  dashes: `${fill("-")}x`,
  "dashes and bars": `|a|\n${fill("-")}x`,
  rules: `${fill("- ")}x`,
  quotes: fill(">"),
  "nested lists": Array.from({ length: 1400 }, (_, n) => `${" ".repeat(n)}- a`).join("\n"),
  "many lists": fill("- a\n* b\n", MB / 4),
  headings: fill("# #"),
  bars: `${fill("|")}\n${fill("|-")}`,
  "wide table": `|${"a|".repeat(60)}\n|${"-|".repeat(60)}\n${fill("|\n", MB / 4)}`,
  "tables in a row": fill("|a|\n|-|\n\n", MB / 4),
  backslashes: fill("\\"),
  entities: fill("&am"),
  lines: fill("\n"),
  tex: `$$${fill("{")}$$`,
};

test("a megabyte of anything takes linear time and a bounded depth", async (context) => {
  for (const [name, text] of Object.entries(LONG)) {
    await context.test(name, () => {
      const start = performance.now();
      const nodes = render(text);
      const ms = performance.now() - start;
      // Linear time is tens to hundreds of milliseconds; quadratic would take hours.
      assert.ok(ms < 10_000, `${Math.round(ms)} ms`);
      if (process.env.SHOW_TIMES) console.log(`${name}: ${Math.round(ms)} ms`);
      const deepest = nodes.reduce((most, node) => Math.max(most, depth(node)), 0);
      assert.ok(deepest < 150, `${deepest} levels`);
    });
  }
});
