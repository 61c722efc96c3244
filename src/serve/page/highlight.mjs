// Syntax colours for comments, strings, numbers and keywords of common languages. One scanner with a table of
// comment syntax and keywords; it has no grammar, and unknown text stays plain.

/** Longer code stays plain, because colouring it would take too long. */
const LONGEST = 60_000;

const words = (text) => new Set(text.split(" "));
const C_LIKE = words(
  "auto break case catch char class const constexpr continue default delete do double else enum " +
    "extern float for goto if include define inline int long namespace new nullptr operator private " +
    "protected public return short signed sizeof static struct switch template this throw try typedef " +
    "typename union unsigned using virtual void volatile while bool true false uint8_t uint32_t " +
    "uint64_t int32_t size_t package import extends implements interface final abstract super " +
    "synchronized throws null boolean byte var string foreach internal override sealed async await get " +
    "set",
);
const SCRIPT = words(
  "as async await break case catch class const continue debugger default delete do else enum export " +
    "extends false finally for from function if implements import in instanceof interface let new null " +
    "of return static super switch this throw true try type typeof undefined var void while yield " +
    "readonly private public",
);
const RUST = words(
  "as async await break const continue crate dyn else enum extern false fn for if impl in let loop " +
    "match mod move mut pub ref return self Self static struct super trait true type unsafe use where " +
    "while",
);
const PYTHON = words(
  "and as assert async await break case class continue def del elif else except False finally for " +
    "from global if import in is lambda match None nonlocal not or pass raise return self True try " +
    "while with yield",
);
const GO = words(
  "break case chan const continue default defer else fallthrough for func go goto if import interface " +
    "map nil package range return select struct switch type var true false",
);
const SHELL = words(
  "if then else elif fi for while until do done case esac function in select return exit export local " +
    "set unset echo cd source alias sudo",
);
const SQL = words(
  "select from where and or not insert into values update set delete create table drop alter index " +
    "primary key foreign references join left right inner outer full on as group by order having limit " +
    "offset union all distinct null is in like between case when then else end with exists count sum " +
    "avg min max",
);
const RUBY = words(
  "alias and begin break case class def do else elsif end ensure false for if in module next nil not " +
    "or redo rescue retry return self super then true undef unless until when while yield require local " +
    "function repeat",
);
const DATA = words("true false null yes no on off");

// Start of a line comment, delimiters of a block comment, and string quotes.
const slashes = { line: "//", block: ["/*", "*/"], quotes: "\"'" };
const hashes = { line: "#", block: null, quotes: "\"'" };
const LANGUAGES = new Map();
const add = (names, rules) => names.split(" ").forEach((name) => LANGUAGES.set(name, rules));
add("c h cpp c++ cc cuda cu java kotlin kt cs csharp c# swift scala php dart wgsl glsl", {
  ...slashes,
  words: C_LIKE,
});
add("js javascript mjs jsx ts typescript tsx", { ...slashes, quotes: "\"'`", words: SCRIPT });
// A quote before a letter may be a lifetime.
add("rust rs", { ...slashes, quotes: '"', words: RUST });
add("go golang", { ...slashes, quotes: "\"'`", words: GO });
add("python py", { ...hashes, words: PYTHON });
add("sh bash shell zsh console dockerfile makefile make", { ...hashes, words: SHELL });
add("ruby rb perl lua", { ...hashes, words: RUBY });
add("yaml yml toml ini", { ...hashes, words: DATA });
add("json jsonc", { ...slashes, quotes: '"', words: DATA });
add("sql", { line: "--", block: ["/*", "*/"], quotes: "\"'", words: SQL, anyCase: true });
add("css scss", { line: null, block: ["/*", "*/"], quotes: "\"'", words: new Set() });
add("html xml svg", { line: null, block: ["<!--", "-->"], quotes: "\"'", words: new Set() });

/** Tokens of `code` in order, {kind: null | comment | string | number | word, text}. */
export function highlight(code, language) {
  const rules = LANGUAGES.get(language.toLowerCase());
  if (rules === undefined || code.length > LONGEST) return [{ kind: null, text: code }];
  const parts = [];
  const put = (kind, text) => {
    const last = parts.at(-1);
    if (last !== undefined && last.kind === kind) last.text += text;
    else parts.push({ kind, text });
  };
  for (let at = 0; at < code.length;) {
    const [kind, length] = partAt(code, at, rules);
    put(kind, code.slice(at, at + length));
    at += length;
  }
  return parts;
}

/** Kind and length of the token at a position. */
function partAt(code, at, rules) {
  const { line, block, quotes } = rules;
  if (block !== null && code.startsWith(block[0], at)) {
    const end = code.indexOf(block[1], at + block[0].length);
    return ["comment", (end < 0 ? code.length : end + block[1].length) - at];
  }
  if (line !== null && code.startsWith(line, at) && !/[$\w]/.test(code[at - 1] ?? " ")) {
    const end = code.indexOf("\n", at);
    return ["comment", (end < 0 ? code.length : end) - at];
  }
  if (quotes.includes(code[at])) return ["string", stringLength(code, at)];
  const word = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
  word.lastIndex = at;
  const name = word.exec(code)?.[0];
  if (name !== undefined) {
    return [rules.words.has(rules.anyCase ? name.toLowerCase() : name) ? "word" : null, name.length];
  }
  const number = /\d[\w.]*/y;
  number.lastIndex = at;
  const digits = number.exec(code)?.[0];
  return digits === undefined ? [null, 1] : ["number", digits.length];
}

/** Length up to the closing quote; only triple quotes and backticks span lines. */
function stringLength(code, at) {
  const quote = code[at];
  const long = code.startsWith(quote.repeat(3), at) ? quote.repeat(3) : quote;
  for (let end = at + long.length; end < code.length; end += 1) {
    if (code[end] === "\\") end += 1;
    else if (code[end] === "\n" && long.length === 1 && quote !== "`") return end - at;
    else if (code.startsWith(long, end)) return end + long.length - at;
  }
  return code.length - at;
}
