// Parses Markdown within a line: text -> a tree of plain objects. `render.mjs` converts it to DOM nodes.
//
// The text comes from a model, so it may be anything. Everything is found in time linear in the text:
// positions that would be searched repeatedly (the end of a code span, the closing bracket of a link) are
// indexed once, and the nesting depth is limited.
//
// Nodes: a string; {type: strong | em | del, children}; {type: link, href, children}; {type: code, text};
// {type: math, tex, display}; {type: break}. HTML is text.

/** Maximum open emphasis marks or brackets; older ones become text. */
const DEEPEST = 24;
const LONGEST_LINK = 1024;
const PLAIN = /[^\\`*_~[\]!<&$h\n ]+/y;
const URL_IN_TEXT = /https?:\/\/[^\s<>[\]`"*]{1,1024}/iy;
const URL_IN_ANGLES = /<((?:https?:\/\/|mailto:)[^\s<>]{1,1024})>/iy;
const LINE_BREAK = /<br ?\/?>/iy;
const ENTITY = /&(?:amp|lt|gt|quot|nbsp|#39);/y;
const ENTITIES = {
  "&amp;": "&",
  "&lt;": "<",
  "&gt;": ">",
  "&quot;": '"',
  "&nbsp;": "\u00A0",
  "&#39;": "'",
};
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;

/** The URL of a link as the browser parses it, or null unless it is http, https or mailto. */
export function safeLink(address) {
  // A relative URL would be a path on the server that runs the model.
  if (!URL.canParse(address)) return null;
  const url = new URL(address);
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

/** The tree of `text`, which may have several lines. */
export function inline(text) {
  return new Scanner(text).run();
}

class Scanner {
  #text;
  #at = 0;
  // Strings, nodes, and the marks that `#tree` converts to elements.
  #items = [];
  #marks = [];
  #brackets = [];
  // Brackets below this one are outside a link that is already closed; links do not nest.
  #linkable = 0;
  #ticks = null;
  #closers = null;
  #ends = new Map();

  constructor(text) {
    this.#text = text;
  }

  run() {
    while (this.#at < this.#text.length) {
      const plain = this.#sticky(PLAIN);
      if (plain !== null) this.#plain(plain[0]);
      else this.#special(this.#text[this.#at]);
    }
    emphasise(this.#marks);
    return tree(this.#items);
  }

  #special(char) {
    const next = this.#text[this.#at + 1];
    switch (char) {
      case "\\":
        return this.#backslash(next);
      case "`":
        return this.#code();
      case "*":
      case "_":
      case "~":
        return this.#mark(char);
      case "[":
        return this.#bracket("[");
      case "!":
        return next === "[" ? this.#bracket("![") : this.#plainOf(1);
      case "]":
        return this.#closeBracket();
      case "<":
        return this.#angle();
      case "&": {
        const entity = this.#sticky(ENTITY);
        return entity === null ? this.#plainOf(1) : this.#plain(ENTITIES[entity[0]], entity[0].length);
      }
      case "$":
        return this.#dollar(next);
      case "h":
        return this.#address();
      case "\n":
        // Line breaks of a model are intended, for instance in verse or postal addresses.
        return this.#node({ type: "break" }, 1);
      default:
        return this.#space();
    }
  }

  /** Matches `pattern`, which is sticky, at the current position. */
  #sticky(pattern) {
    pattern.lastIndex = this.#at;
    return pattern.exec(this.#text);
  }

  #plain(text, length = text.length) {
    const last = this.#items.length - 1;
    if (typeof this.#items[last] === "string") this.#items[last] += text;
    else this.#items.push(text);
    this.#at += length;
  }

  #plainOf(length) {
    this.#plain(this.#text.slice(this.#at, this.#at + length));
  }

  #node(node, length) {
    this.#items.push(node);
    this.#at += length;
  }

  /** Position of `end` after the current one, or -1. If it was not found once, it is not searched again. */
  #find(end, from) {
    if (this.#ends.get(end) === -1) return -1;
    const at = this.#text.indexOf(end, from);
    this.#ends.set(end, at);
    return at;
  }

  /** Spaces before the end of a line are dropped. */
  #space() {
    let end = this.#at;
    while (this.#text[end] === " ") end += 1;
    if (this.#text[end] === "\n") this.#at = end;
    else this.#plainOf(end - this.#at);
  }

  #backslash(next) {
    const close = { "(": "\\)", "[": "\\]" }[next];
    if (close !== undefined) {
      const end = this.#find(close, this.#at + 2);
      if (end >= 0) return this.#math(this.#at + 2, end, 2, next === "[");
    }
    if (next === "\n") return this.#node({ type: "break" }, 2);
    if (next !== undefined && ESCAPABLE.test(next)) return this.#plain(next, 2);
    return this.#plainOf(1);
  }

  #dollar(next) {
    if (next === "$") {
      const end = this.#find("$$", this.#at + 2);
      if (end > this.#at + 2) return this.#math(this.#at + 2, end, 2, true);
      return this.#plainOf(2);
    }
    // Two prices are not a formula: neither sign has a space on its inside, and no digit follows.
    const end = this.#find("$", this.#at + 1);
    const inner = end < 0 ? "" : this.#text.slice(this.#at + 1, end);
    const touches = inner !== "" && !/^\s|\s$/.test(inner) && !inner.includes("\n");
    if (touches && !/\d/.test(this.#text[end + 1] ?? "")) return this.#math(this.#at + 1, end, 1, false);
    return this.#plainOf(1);
  }

  #math(start, end, close, display) {
    this.#items.push({ type: "math", tex: this.#text.slice(start, end).trim(), display });
    this.#at = end + close;
  }

  #code() {
    this.#ticks ??= runsOfTicks(this.#text);
    let length = 1;
    while (this.#text[this.#at + length] === "`") length += 1;
    const places = this.#ticks.get(length) ?? [];
    while (places.length > 0 && places.at(-1) <= this.#at) places.pop();
    const end = places.at(-1);
    if (end === undefined) return this.#plainOf(length);
    let text = this.#text.slice(this.#at + length, end).replaceAll("\n", " ");
    const padded = text.startsWith(" ") && text.endsWith(" ") && text.trim() !== "";
    if (padded) text = text.slice(1, -1);
    this.#items.push({ type: "code", text });
    this.#at = end + length;
  }

  /** A run of `*`, `_` or `~~`, which may open or close emphasis (CommonMark, flanking runs). */
  #mark(char) {
    let end = this.#at;
    while (this.#text[end] === char) end += 1;
    const length = end - this.#at;
    if (char === "~" ? length !== 2 : length > 3) return this.#plainOf(length);
    const before = this.#text[this.#at - 1] ?? " ";
    const after = this.#text[end] ?? " ";
    const [spaceBefore, spaceAfter] = [/\s/.test(before), /\s/.test(after)];
    const [pointBefore, pointAfter] = [PUNCTUATION.test(before), PUNCTUATION.test(after)];
    const left = !spaceAfter && (!pointAfter || spaceBefore || pointBefore);
    const right = !spaceBefore && (!pointBefore || spaceAfter || pointAfter);
    const word = char === "_";
    const mark = {
      char,
      count: length,
      length,
      opens: [],
      closes: [],
      open: left && (!word || !right || pointBefore),
      close: right && (!word || !left || pointAfter),
    };
    this.#items.push(mark);
    this.#marks.push(mark);
    this.#at = end;
  }

  #bracket(text) {
    const bracket = { bracket: text, item: this.#items.length, marks: this.#marks.length };
    this.#items.push(bracket);
    this.#brackets.push(bracket);
    if (this.#brackets.length > DEEPEST) {
      this.#brackets.shift();
      this.#linkable = Math.max(0, this.#linkable - 1);
    }
    this.#at += text.length;
  }

  #closeBracket() {
    const level = this.#brackets.length - 1;
    const bracket = this.#brackets.pop();
    const link = bracket && level >= this.#linkable ? this.#destination() : null;
    this.#linkable = Math.min(this.#linkable, this.#brackets.length);
    if (link === null) return this.#plainOf(1);
    // Emphasis does not extend across the edge of a link.
    emphasise(this.#marks.splice(bracket.marks));
    // The image itself is not loaded: the request would tell a third party that this was read.
    bracket.link = { type: "link", href: link.href, children: [] };
    this.#items.push({ end: true });
    this.#at = link.end;
    this.#linkable = this.#brackets.length;
  }

  /** Destination of a link whose text ends here: `(address)` or `(address "title")`. */
  #destination() {
    const open = this.#at + 1;
    if (this.#text[open] !== "(") return null;
    this.#closers ??= closingBrackets(this.#text);
    const close = this.#closers[open];
    if (close === 0 || close - open > LONGEST_LINK) return null;
    const inner = this.#text.slice(open + 1, close).trim();
    const parts = /^(?:<([^<>\n]*)>|(\S*))(?:\s+["'(][^\n]*["')])?$/.exec(inner);
    const href = parts === null ? null : safeLink(parts[1] ?? parts[2]);
    return href === null ? null : { href, end: close + 1 };
  }

  #angle() {
    const address = this.#sticky(URL_IN_ANGLES);
    const href = address === null ? null : safeLink(address[1]);
    if (href !== null) {
      const text = address[1].replace(/^mailto:/i, "");
      return this.#node({ type: "link", href, children: [text] }, address[0].length);
    }
    const lineBreak = this.#sticky(LINE_BREAK);
    if (lineBreak !== null) return this.#node({ type: "break" }, lineBreak[0].length);
    return this.#plainOf(1);
  }

  /** A bare URL in the text. Punctuation at its end belongs to the sentence. */
  #address() {
    const inWord = /[\p{L}\p{N}]/u.test(this.#text[this.#at - 1] ?? " ");
    const found = inWord ? null : this.#sticky(URL_IN_TEXT);
    const address = found === null ? "" : withoutEnd(found[0]);
    const href = found === null ? null : safeLink(address);
    if (href === null) return this.#plainOf(1);
    return this.#node({ type: "link", href, children: [address] }, address.length);
  }
}

/**
 * `address` without the punctuation after it; a closing bracket stays if the address contains the opening
 * one.
 */
function withoutEnd(address) {
  let open = 0;
  for (const char of address) open += char === "(" ? 1 : char === ")" ? -1 : 0;
  let end = address.length;
  for (; end > 0; end -= 1) {
    const last = address[end - 1];
    if (last === ")" && open < 0) open += 1;
    else if (!/[.,;:!?'_~]/.test(last)) break;
  }
  return address.slice(0, end);
}

/** Start positions of backtick runs by their length, the first one last. */
function runsOfTicks(text) {
  const runs = new Map();
  for (const run of text.matchAll(/`+/g)) {
    const length = run[0].length;
    if (!runs.has(length)) runs.set(length, []);
    runs.get(length).push(run.index);
  }
  for (const places of runs.values()) places.reverse();
  return runs;
}

/** Position of the closing round bracket for every opening one, 0 if there is none. */
function closingBrackets(text) {
  const closers = new Int32Array(text.length);
  const open = [];
  for (const bracket of text.matchAll(/\\.|[()]/gs)) {
    if (bracket[0] === "(") open.push(bracket.index);
    else if (bracket[0] === ")" && open.length > 0) closers[open.pop()] = bracket.index;
  }
  return closers;
}

/** Pairs opening and closing emphasis marks by CommonMark's rules, with a bounded stack. */
function emphasise(marks) {
  const open = [];
  for (const mark of marks) {
    while (mark.close && mark.count > 0) {
      const at = open.findLastIndex((other) => pairs(other, mark));
      if (at < 0) break;
      const opener = open[at];
      const used = opener.count >= 2 && mark.count >= 2 ? 2 : 1;
      const type = mark.char === "~" ? "del" : used === 2 ? "strong" : "em";
      opener.opens.push(type);
      mark.closes.push(type);
      opener.count -= used;
      mark.count -= used;
      open.length = opener.count > 0 ? at + 1 : at;
    }
    if (mark.open && mark.count > 0) open.push(mark);
    if (open.length > DEEPEST) open.shift();
  }
}

function pairs(opener, closer) {
  if (opener.char !== closer.char) return false;
  if (opener.char === "~") return opener.count === 2 && closer.count === 2;
  // CommonMark's rule of three, which keeps `*a**b*` one emphasis.
  const both = opener.close || closer.open;
  const odd = opener.length % 3 !== 0 || closer.length % 3 !== 0;
  return !(both && odd && (opener.length + closer.length) % 3 === 0);
}

/** Converts items with marks to nested nodes. */
function tree(items) {
  const root = { children: [] };
  const open = [root];
  const inLink = () => open.some((node) => node.type === "link");
  const add = (node) => {
    // The text of a link may be a URL; links do not nest.
    const nodes = node.type === "link" && inLink() ? node.children : [node];
    open.at(-1).children.push(...nodes);
  };
  const enter = (node) => {
    add(node);
    open.push(node);
  };
  for (const item of items) {
    if (item.end) {
      open.pop();
    } else if (item.bracket !== undefined) {
      if (item.link) enter(item.link);
      else add(item.bracket);
    } else if (item.char !== undefined) {
      for (let closed = 0; closed < item.closes.length; closed += 1) open.pop();
      if (item.count > 0) add(item.char.repeat(item.count));
      for (const type of item.opens.reverse()) enter({ type, children: [] });
    } else {
      add(item);
    }
  }
  return root.children;
}
