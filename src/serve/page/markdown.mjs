// Parses Markdown blocks: lines -> a list of plain objects. `inline.mjs` parses the text within them.
//
// Made for the output of models, which is CommonMark with tables, with these differences: HTML is text, four
// spaces do not make code (models indent for other reasons), a line of `---` is always a rule, and there are
// no references. A block therefore does not depend on anything outside it, so a stream can be rendered block
// by block.

/** Maximum nesting of lists and quotations; deeper ones are text. */
const DEEPEST = 10;
/** A wider table is text: it would have more cells than the text has letters. */
const WIDEST = 64;

/** Maximum lines of a formula; longer ones are text. This limits how far its end is searched. */
const MAX_FORMULA_LINES = 50;

// Each of these patterns must match a line in linear time. A `.*` next to something it can also match would
// not.
const FENCE = /^ {0,3}(?:(`{3,})([^`]*)|(~{3,})(.*))$/;
const HEADING = /^ {0,3}(#{1,6})(?=\s|$)/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])( +(?=\S)| *$)/;
const TASK = /^\[([ xX])\] +(?=\S)/;
const FORMULA = /^ {0,3}(\$\$|\\\[)/;

/** The lines of a text, with leading tabs as spaces. */
export function linesOf(text) {
  const spaces = (tabs) => tabs.replaceAll("\t", "    ");
  return text.split("\n").map((line) => line.replace(/\r$/, "").replace(/^[ \t]+/, spaces));
}

/**
 * The blocks of `lines`, each with `line`, the index of its first line:
 * {type: paragraph, text}, {type: heading, level, text}, {type: rule}, {type: code, language, text, closed},
 * {type: math, tex, closed}, {type: quote, blocks}, {type: table, align, head, rows},
 * {type: list, start (null for bullets), tight, items: [{task: null | boolean, blocks}]}.
 */
export function blocksOf(lines, depth = 0) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const [block, next] = blockAt(lines, at, depth);
    block.line = at;
    blocks.push(block);
    at = next;
  }
  return blocks;
}

const isBlank = (line) => line.trim() === "";
const indentOf = (line) => line.length - line.trimStart().length;

/** The block that starts at a line, and the index of the line after it. */
function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence !== null) return code(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading !== null) {
    const text = line
      .slice(heading[0].length)
      .trim()
      .replace(/(?:^|\s)#+$/, "");
    return [{ type: "heading", level: heading[1].length, text: text.trim() }, at + 1];
  }
  if (RULE.test(line)) return [{ type: "rule" }, at + 1];
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, depth);
  const align = columnsAt(lines, at);
  if (align !== null) return table(lines, at, align);
  return (FORMULA.test(line) && formula(lines, at)) || paragraph(lines, at);
}

/** True if a line starts a block in the middle of a paragraph. */
function interrupts(lines, at) {
  const line = lines[at];
  const item = ITEM.exec(line);
  // A number at the start of a wrapped line does not start a list, unless it is 1.
  const listed = item !== null && item[3] !== "" && /^(?:[-*+]|1[.)])$/.test(item[2]);
  return (
    listed ||
    FENCE.test(line) ||
    HEADING.test(line) ||
    RULE.test(line) ||
    QUOTE.test(line) ||
    FORMULA.test(line) ||
    columnsAt(lines, at) !== null
  );
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end)) end += 1;
  const text = lines.slice(at, end).map((line) => line.trimStart());
  return [{ type: "paragraph", text: text.join("\n").trimEnd() }, end];
}

/** Code between fences, or to the end of the text if the closing fence has not arrived. */
function code(lines, at, fence) {
  const mark = fence[1] ?? fence[3];
  const language = /\S*/.exec((fence[2] ?? fence[4]).trim())[0];
  const indent = indentOf(lines[at]);
  const isEnd = (line) => {
    const text = line.trim();
    return indentOf(line) < 4 && text.length >= mark.length && text === mark[0].repeat(text.length);
  };
  let end = at + 1;
  while (end < lines.length && !isEnd(lines[end])) end += 1;
  const unindented = (line) => line.slice(Math.min(indent, indentOf(line)));
  const text = lines
    .slice(at + 1, end)
    .map(unindented)
    .join("\n");
  return [{ type: "code", language, text, closed: end < lines.length }, Math.min(end + 1, lines.length)];
}

/** A formula on its own lines. It must end before a blank line, otherwise it is not a formula. */
function formula(lines, at) {
  const close = FORMULA.exec(lines[at])[1] === "$$" ? "$$" : "\\]";
  const tex = [];
  const most = Math.min(lines.length, at + MAX_FORMULA_LINES);
  for (let end = at; end < most && !isBlank(lines[end]); end += 1) {
    const text = end === at ? lines[end].trim().slice(2) : lines[end].trim();
    const stop = text.indexOf(close);
    if (stop >= 0 && text.slice(stop + 2).trim() !== "") return null;
    tex.push(stop >= 0 ? text.slice(0, stop) : text);
    if (stop >= 0) return [{ type: "math", tex: tex.join("\n").trim(), closed: true }, end + 1];
    // The rest may still arrive. The text after the last line feed is not a blank line yet.
    const left = lines.length - end - 1;
    if (left === 0 || (left === 1 && isBlank(lines[end + 1]))) {
      return [{ type: "math", tex: tex.join("\n"), closed: false }, end + 1];
    }
  }
  return null;
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [{ type: "quote", blocks: blocksOf(inner, depth + 1) }, end];
}

/**
 * A list of items with the same kind of marker. A line belongs to an item if it is indented by two or more
 * spaces beyond the marker: models nest under `1.` with two, where CommonMark requires three.
 */
function list(lines, at, depth) {
  const [, margin, mark] = ITEM.exec(lines[at]);
  const kind = mark.at(-1);
  const items = [];
  let tight = true;
  let end = at;
  while (end < lines.length) {
    const item = ITEM.exec(lines[end]);
    const same = item !== null && item[2].at(-1) === kind && item[1].length < margin.length + 2;
    if (!same || RULE.test(lines[end])) break;
    const [inner, next] = itemLines(lines, end, item);
    const task = TASK.exec(inner[0]);
    if (task !== null) inner[0] = inner[0].slice(task[0].length);
    const blocks = blocksOf(inner, depth + 1);
    items.push({ task: task && task[1] !== " ", blocks });
    end = next;
    // A blank line between two items, or between the blocks of one, makes the whole list loose.
    const last = inner.findLastIndex((line) => !isBlank(line));
    const more = end < lines.length && ITEM.exec(lines[end])?.[2].at(-1) === kind;
    if (more && last < inner.length - 1) tight = false;
    if (blocks.slice(1).some((block) => isBlank(inner[block.line - 1]))) tight = false;
  }
  const start = /\d/.test(mark) ? Number.parseInt(mark, 10) : null;
  return [{ type: "list", start, tight, items }, end];
}

/** The lines of the item at `at` without their margin, and the index of the line after them. */
function itemLines(lines, at, item) {
  const outside = item[1].length + 2;
  const gap = item[3].length > 4 || item[3].length === 0 ? 1 : item[3].length;
  const margin = item[1].length + item[2].length + gap;
  const inner = [lines[at].slice(margin)];
  let end = at + 1;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    const within = isBlank(line) || indentOf(line) >= outside;
    // The second line of a paragraph may start at the margin.
    const wrapped = !within && !isBlank(lines[end - 1]) && !ITEM.test(line) && !interrupts(lines, end);
    if (!within && !wrapped) break;
    inner.push(line.slice(Math.min(margin, indentOf(line))));
  }
  return [inner, end];
}

/** Column alignments if a table starts at this line: a header row and a line of dashes below it. */
function columnsAt(lines, at) {
  const [head, rule] = [lines[at], lines[at + 1]];
  if (rule === undefined || !head.includes("|") || !/^[|:\- ]+$/.test(rule)) return null;
  const marks = cellsOf(rule);
  const fits = marks.length <= WIDEST && marks.every((mark) => /^:?-+:?$/.test(mark));
  if (!fits || !rule.includes("|") || cellsOf(head).length !== marks.length) return null;
  return marks.map((mark) => {
    if (!mark.endsWith(":")) return mark.startsWith(":") ? "left" : null;
    return mark.startsWith(":") ? "center" : "right";
  });
}

function table(lines, at, align) {
  let end = at + 2;
  while (end < lines.length && !isBlank(lines[end]) && lines[end].includes("|")) end += 1;
  const rows = lines.slice(at + 2, end).map((line) => cellsOf(line).slice(0, align.length));
  return [{ type: "table", align, head: cellsOf(lines[at]), rows }, end];
}

/** The cells of a row; `\|` is a literal bar. */
function cellsOf(line) {
  const text = line.trim().replace(/^\|/, "");
  const cells = [""];
  for (const [part] of text.matchAll(/\\\||\||[^|\\]+|\\/g)) {
    if (part === "|") cells.push("");
    else cells[cells.length - 1] += part === "\\|" ? "|" : part;
  }
  if (cells.length > 1 && cells.at(-1).trim() === "") cells.pop();
  return cells.map((cell) => cell.trim());
}
