// Renders Markdown to DOM nodes, at once or while it is generated.

import { copyButton } from "./clipboard.mjs";
import { element } from "./dom.mjs";
import { highlight } from "./highlight.mjs";
import { inline } from "./inline.mjs";
import { blocksOf, linesOf } from "./markdown.mjs";
import { formula } from "./math.mjs";

/** The nodes of a Markdown text, one per block. */
export function render(text) {
  return blocksOf(linesOf(text)).map(blockNode);
}

/**
 * Renders a growing text into `root`. Finished blocks are rendered once; only the last block is rendered
 * again, so that long answers cost no more per token than short ones.
 */
export class GrowingText {
  #root;
  /** Offset in the text of the first block that may still change. */
  #settled = 0;
  /** Index of that block among the children of the root. */
  #first = 0;
  #last = null;

  constructor(root) {
    this.#root = root;
    root.replaceChildren();
  }

  /** Shows `text`, which starts with all that was shown before. */
  show(text) {
    const tail = text.slice(this.#settled);
    const lines = linesOf(tail);
    const blocks = blocksOf(lines);
    const kept = this.#keepCode(blocks[0]);
    while (this.#root.childNodes.length > this.#first + kept) this.#root.lastChild.remove();
    for (const block of blocks.slice(kept)) this.#root.append(blockNode(block));

    // A block is finished when the next one has started, which takes two lines: a table is recognised by its
    // second.
    const open = Math.max(
      blocks.findLastIndex((block) => block.line + 2 < lines.length),
      0,
    );
    this.#last = blocks[open] ?? null;
    this.#first += open;
    for (let line = this.#last?.line ?? 0; open > 0 && line > 0; line -= 1) {
      this.#settled = text.indexOf("\n", this.#settled) + 1;
    }
  }

  /** Code that grows keeps its node, and with it the selection and scroll position: 1 if it was kept. */
  #keepCode(block) {
    const node = this.#root.childNodes[this.#first];
    const same =
      block?.type === "code" && this.#last?.type === "code" && this.#last.language === block.language;
    if (!same || node === undefined) return 0;
    if (this.#last.text !== block.text) fillCode(node.querySelector("code"), block);
    return 1;
  }
}

function blockNode(block) {
  switch (block.type) {
    case "heading":
      // The page itself uses the first two heading levels.
      return element(`h${Math.min(block.level + 2, 6)}`, {}, ...inlineNodes(block.text));
    case "rule":
      return element("hr");
    case "code":
      return codeNode(block);
    case "math":
      return element("div", { class: "formula" }, formula(block.tex, true));
    case "quote":
      return element("blockquote", {}, block.blocks.map(blockNode));
    case "list":
      return listNode(block);
    case "table":
      return tableNode(block);
    default:
      return element("p", {}, inlineNodes(block.text));
  }
}

function codeNode(block) {
  const code = element("code");
  fillCode(code, block);
  return element(
    "figure",
    { class: "code" },
    element(
      "figcaption",
      {},
      element("span", {}, block.language || "text"),
      copyButton(() => code.textContent),
    ),
    // The element scrolls, so it must be focusable by keyboard.
    element("pre", { tabindex: 0, "aria-label": `Code, ${block.language || "text"}` }, code),
  );
}

function fillCode(code, { text, language }) {
  const part = ({ kind, text: words }) =>
    kind === null ? words : element("span", { class: `code-${kind}` }, words);
  code.replaceChildren(...highlight(text, language).map(part));
}

function listNode({ start, tight, items }) {
  const item = ({ task, blocks }) => {
    const box = task !== null && element("input", { type: "checkbox", disabled: true, checked: task });
    const nodes = blocks.map((block) => {
      return tight && block.type === "paragraph" ? inlineNodes(block.text) : blockNode(block);
    });
    return element("li", { class: task === null ? null : "task" }, box, nodes.flat());
  };
  const first = start === null || start === 1 ? {} : { start };
  return element(start === null ? "ul" : "ol", first, items.map(item));
}

function tableNode({ align, head, rows }) {
  const cell = (name) => (text, at) => {
    return element(name, { class: align[at] && `align-${align[at]}` }, inlineNodes(text));
  };
  const row = (name) => (cells) => element("tr", {}, cells.map(cell(name)));
  const table = element(
    "table",
    {},
    element("thead", {}, row("th")(head)),
    element("tbody", {}, rows.map(row("td"))),
  );
  return element("div", { class: "table", tabindex: 0, role: "region", "aria-label": "Table" }, table);
}

function inlineNodes(text) {
  return inline(text).map(inlineNode);
}

function inlineNode(node) {
  if (typeof node === "string") return node;
  switch (node.type) {
    case "code":
      return element("code", {}, node.text);
    case "math":
      return formula(node.tex, node.display);
    case "break":
      return element("br");
    case "link": {
      const properties = { href: node.href, target: "_blank", rel: "noopener noreferrer nofollow" };
      return element("a", properties, node.children.map(inlineNode));
    }
    default:
      return element(node.type, {}, node.children.map(inlineNode));
  }
}
