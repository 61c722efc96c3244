//! Pre-tokenizers: they split text into pieces that byte-level BPE does not merge across.
//!
//! Each is a list of regular expressions, as published by the model's authors, applied in sequence: matches
//! and the gaps between them become pieces, and the next expression splits those. `pattern.rs` parses them.
//! Matching takes linear time on any text.

use std::fmt;
use std::str::FromStr;

use super::TokenizerError;
use super::pattern::Pattern;

/// A pre-tokenizer of byte-level BPE, parsed from its name in `tokenizer.ggml.pre`.
#[derive(Clone, Copy)]
pub struct PreTokenizer(&'static Kind);

struct Kind {
    name: &'static str,
    /// Other names for the same pre-tokenizer.
    aliases: &'static [&'static str],
    rules: &'static [Rule],
    ignore_merges: bool,
    add_bos: bool,
}

struct Rule {
    pattern: &'static str,
    /// The published pattern ends in `\s+(?!\S)|\s+`: a run of whitespace leaves its last character to the
    /// following word. `Pattern` has no look-ahead, so the pattern here ends in `\s+`, and the last character
    /// is given back afterwards.
    give_back: GiveBack,
}

#[derive(Clone, Copy, PartialEq)]
enum GiveBack {
    Nothing,
    Whitespace,
    /// As above, but an earlier alternative matches runs that end in a newline.
    WhitespaceButNewlines,
    /// The published pattern is `\s+$`: the whole match is given back unless it ends the text.
    UnlessAtEnd,
    /// The published pattern takes up to three characters if a multiple of three follows them in the run: the
    /// pattern here takes the run, which is divided into threes from its end.
    Threes,
}

const fn rule(pattern: &'static str, give_back: GiveBack) -> Rule {
    Rule { pattern, give_back }
}

const GPT2: Rule =
    rule(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+", GiveBack::Whitespace);
const THREE_DIGITS: Rule = rule("[0-9][0-9][0-9]", GiveBack::Nothing);
const DIGIT: Rule = rule(r"\p{N}", GiveBack::Nothing);
const UP_TO_THREE: Rule = rule(r"\p{N}{1,3}", GiveBack::Nothing);
const NEWLINE: Rule = rule(r"[\r\n]", GiveBack::Nothing);
const LLAMA3: Rule = rule(
    concat!(
        r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|",
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
    ),
    GiveBack::WhitespaceButNewlines,
);
const QWEN2: Rule = rule(
    concat!(
        r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|",
        r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
    ),
    GiveBack::WhitespaceButNewlines,
);
/// Han, and most characters between the Indic scripts and the private use area.
const WORDS_AND_SIGNS: Rule = rule(
    concat!(
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|",
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|",
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+"
    ),
    GiveBack::WhitespaceButNewlines,
);
const ASIA: Rule = rule(
    concat!(
        "[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{f900}-\u{faff}\u{3040}-\u{309f}\u{30a0}-\u{30ff}",
        "\u{ff65}-\u{ff9f}\u{2f00}-\u{2fdf}\u{e40}-\u{e7f}\u{e80}-\u{eff}\u{1780}-\u{17ff}\u{1000}-\u{109f}",
        "\u{aa60}-\u{aa7f}\u{a9e0}-\u{a9ff}\u{ac00}-\u{d7af}\u{1100}-\u{11ff}]+"
    ),
    GiveBack::Nothing,
);
const EAST: Rule = rule("[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+", GiveBack::Nothing);
const HAN_AND_KANA: Rule = rule("[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+", GiveBack::Nothing);
const BLOOM: Rule = rule(
    concat!(r" ?[^(\s|.,!?", "\u{2026}\u{3002}\u{ff0c}\u{3001}\u{964}\u{6d4}\u{60c}", r")]+"),
    GiveBack::Nothing,
);
/// Letters with upper and lower case, from an older Unicode version.
const CASED: Rule = rule(
    concat!(
        r"\s?[",
        "A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}",
        "\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}",
        "\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}",
        "\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}",
        "\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}",
        "\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}",
        "\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}",
        "\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}",
        "\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}",
        "\u{213c}-\u{213f}\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}",
        "\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}",
        "\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}",
        "\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}",
        "\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\u{1e900}-\u{1e943}",
        "]+"
    ),
    GiveBack::Nothing,
);

/// All pre-tokenizers.
const REGISTRY: &[Kind] = &[
    Kind {
        name: "llama-bpe",
        aliases: &[
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "lfm2",
            "pixtral",
            "midm-2.0",
            "jina-v5-nano",
        ],
        rules: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    Kind {
        name: "gpt-2",
        aliases: &[
            "phi-2",
            "olmo",
            "exaone4",
            "mpt",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "modern-bert",
        ],
        rules: &[GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "tekken",
        aliases: &[],
        rules: &[rule(
            concat!(
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
                r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
            ),
            GiveBack::WhitespaceButNewlines,
        )],
        ignore_merges: true,
        add_bos: true,
    },
    Kind {
        name: "gpt-4o",
        aliases: &["llama4", "kanana2", "talkie", "minimax-m2"],
        rules: &[rule(
            concat!(
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
                r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|",
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
                r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|",
                r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
            ),
            GiveBack::WhitespaceButNewlines,
        )],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "kimi-k2",
        aliases: &[],
        rules: &[rule(
            concat!(
                r"[\p{Han}]+|",
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
                r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|",
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
                r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?|",
                r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
            ),
            GiveBack::WhitespaceButNewlines,
        )],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "qwen35",
        aliases: &[],
        rules: &[rule(
            concat!(
                r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|",
                r"\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
            ),
            GiveBack::WhitespaceButNewlines,
        )],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "default",
        aliases: &[],
        rules: &[
            rule(r"[\p{P}$+<=>^~|]+", GiveBack::Nothing),
            GPT2,
            rule(r"\p{N}+", GiveBack::Nothing),
            THREE_DIGITS,
        ],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "qwen2",
        aliases: &[
            "deepseek-r1-qwen",
            "stablelm2",
            "megrez",
            "kormo",
            "f2llmv2",
            "hunyuan",
            "solar-open",
            "grok-2",
            "bailingmoe",
            "bailingmoe2",
            "llada-moe",
        ],
        rules: &[QWEN2],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "falcon",
        aliases: &[],
        rules: &[rule(r"[\p{P}$+<=>^~|`]+", GiveBack::Nothing), GPT2, THREE_DIGITS],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "falcon_e",
        aliases: &[],
        rules: &[rule(r"[\p{P}$+<=>^~|`]+", GiveBack::Nothing), GPT2, rule("[0-9]", GiveBack::Nothing)],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "smollm",
        aliases: &["starcoder", "refact", "command-r", "exaone", "minerva-7b", "codeshell", "mellum2"],
        rules: &[DIGIT, GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "smaug-bpe",
        aliases: &["dbrx", "glm4", "chatglm-bpe"],
        rules: &[LLAMA3],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "deepseek-llm",
        aliases: &[],
        rules: &[
            NEWLINE,
            CASED,
            rule(
                "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+",
                GiveBack::Nothing,
            ),
            rule(r"\s+", GiveBack::UnlessAtEnd),
            EAST,
            rule(r"\p{N}+", GiveBack::Nothing),
        ],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "deepseek-coder",
        aliases: &[],
        rules: &[
            NEWLINE,
            rule(r"\s?\p{L}+", GiveBack::Nothing),
            rule(r"\s?\p{P}+", GiveBack::Nothing),
            EAST,
            DIGIT,
        ],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "deepseek-v3",
        aliases: &["hunyuan-dense", "joyai-llm", "hy_v4"],
        rules: &[UP_TO_THREE, HAN_AND_KANA, WORDS_AND_SIGNS],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "afmoe",
        aliases: &[],
        rules: &[rule(r"\p{N}+", GiveBack::Threes), ASIA, WORDS_AND_SIGNS],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "poro-chat",
        aliases: &["bloom", "gpt3-finnish"],
        rules: &[BLOOM],
        ignore_merges: false,
        add_bos: false,
    },
    Kind { name: "viking", aliases: &[], rules: &[BLOOM, DIGIT], ignore_merges: false, add_bos: false },
    Kind {
        name: "seed-coder",
        aliases: &[],
        rules: &[rule(
            concat!(
                r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|",
                r"\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+"
            ),
            GiveBack::WhitespaceButNewlines,
        )],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "minicpm5",
        aliases: &[],
        rules: &[
            UP_TO_THREE,
            rule(
                concat!(
                    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|",
                    r"\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
                ),
                GiveBack::WhitespaceButNewlines,
            ),
        ],
        ignore_merges: true,
        add_bos: false,
    },
    Kind {
        name: "ufakzeka",
        aliases: &[],
        rules: &[rule(
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
            GiveBack::WhitespaceButNewlines,
        )],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        name: "laguna",
        aliases: &[],
        rules: &[rule(r"[^\n]+|[\n]+", GiveBack::Nothing), QWEN2],
        ignore_merges: false,
        add_bos: false,
    },
];

impl PreTokenizer {
    /// All pre-tokenizers.
    pub fn all() -> impl Iterator<Item = Self> {
        REGISTRY.iter().map(Self)
    }

    /// Name in `tokenizer.ggml.pre`; the first one if there are aliases.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// True if a piece that is itself a token skips merging.
    pub fn ignore_merges(self) -> bool {
        self.0.ignore_merges
    }

    /// True if texts begin with BOS when the file does not say.
    pub fn add_bos(self) -> bool {
        self.0.add_bos
    }

    /// Regular expressions as published, including look-ahead, to be applied in sequence.
    pub fn published(self) -> impl Iterator<Item = String> {
        self.0.rules.iter().map(|rule| match rule.give_back {
            GiveBack::Nothing => rule.pattern.to_owned(),
            GiveBack::UnlessAtEnd => format!("{}$", rule.pattern),
            GiveBack::Threes => {
                let one = rule.pattern.strip_suffix('+').expect("a run of one class");
                format!(r"{one}{{1,3}}(?=(?:{one}{{3}})*(?:\P{{N}}|$))")
            }
            GiveBack::Whitespace | GiveBack::WhitespaceButNewlines => {
                let rest = rule.pattern.strip_suffix(r"|\s+").expect("it ends in whitespace");
                format!(r"{rest}|\s+(?!\S)|\s+")
            }
        })
    }
}

impl FromStr for PreTokenizer {
    type Err = TokenizerError;

    /// Parses a name of `tokenizer.ggml.pre`.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownPre`], which lists the known names.
    fn from_str(name: &str) -> Result<Self, TokenizerError> {
        let known = || Self::all().map(Self::name).collect::<Vec<_>>().join(", ");
        Self::all()
            .find(|Self(kind)| kind.name == name || kind.aliases.contains(&name))
            .ok_or_else(|| TokenizerError::UnknownPre { found: name.to_owned(), known: known() })
    }
}

impl fmt::Display for PreTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for PreTokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The parsed expressions of a pre-tokenizer.
pub struct Splitter {
    rules: Vec<(Pattern, GiveBack)>,
}

impl Splitter {
    /// Parses the expressions of `pre`.
    pub fn new(pre: PreTokenizer) -> Self {
        let read = |rule: &Rule| (Pattern::new(rule.pattern), rule.give_back);
        Self { rules: pre.0.rules.iter().map(read).collect() }
    }

    /// Splits `text` into pieces, in order; concatenated they are `text`.
    pub fn split<'t>(&self, text: &'t str) -> Vec<&'t str> {
        let mut pieces = vec![text];
        for (pattern, give_back) in &self.rules {
            let mut finer = Vec::with_capacity(pieces.len());
            for piece in pieces {
                split_by(pattern, *give_back, piece, &mut finer);
            }
            pieces = finer;
        }
        pieces
    }
}

fn split_by<'t>(pattern: &Pattern, give_back: GiveBack, text: &'t str, out: &mut Vec<&'t str>) {
    let (mut done, mut from) = (0, 0);
    while let Some((start, end)) = pattern.find_at(text, from) {
        from = end;
        if give_back == GiveBack::UnlessAtEnd && end < text.len() {
            continue;
        }
        if start > done {
            out.push(&text[done..start]);
        }
        if give_back == GiveBack::Threes {
            by_threes(&text[start..end], out);
            done = end;
            continue;
        }
        let end = end - given_back(give_back, &text[start..end], end == text.len());
        out.push(&text[start..end]);
        (done, from) = (end, end);
    }
    if done < text.len() {
        out.push(&text[done..]);
    }
}

/// Divides a run of characters into threes from its end.
fn by_threes<'t>(run: &'t str, out: &mut Vec<&'t str>) {
    let (n, mut done) = (run.chars().count(), 0);
    for (before, (at, _)) in run.char_indices().enumerate().skip(1) {
        if (n - before).is_multiple_of(3) {
            out.push(&run[done..at]);
            done = at;
        }
    }
    out.push(&run[done..]);
}

/// Bytes at the end of a match that are left to the next piece.
fn given_back(rule: GiveBack, found: &str, at_end: bool) -> usize {
    let Some(last) = found.chars().next_back() else { return 0 };
    let taken = match rule {
        GiveBack::Nothing | GiveBack::UnlessAtEnd | GiveBack::Threes => false,
        GiveBack::Whitespace => last.is_whitespace(),
        GiveBack::WhitespaceButNewlines => last.is_whitespace() && !matches!(last, '\r' | '\n'),
    };
    if taken && !at_end && found.len() > last.len_utf8() { last.len_utf8() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(name: &str, text: &str) -> Vec<String> {
        let pieces = Splitter::new(name.parse().unwrap()).split(text);
        assert_eq!(pieces.concat(), text);
        pieces.into_iter().map(str::to_owned).collect()
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> =
            REGISTRY.iter().flat_map(|kind| kind.aliases.iter().chain([&kind.name])).collect();
        let n = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), n);
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let message = "superbpe".parse::<PreTokenizer>().unwrap_err().to_string();
        for want in ["superbpe", "TokenizerOptions::pre", "llama-bpe", "tekken", "smollm"] {
            assert!(message.contains(want), "{message}");
        }
    }

    #[test]
    fn whitespace_leaves_its_last_character_to_the_word() {
        for name in ["gpt-2", "llama-bpe", "qwen2"] {
            assert_eq!(split(name, "a   b"), ["a", "  ", " b"], "{name}");
            assert_eq!(split(name, "a   "), ["a", "   "], "{name}");
            assert_eq!(split(name, "a b"), ["a", " b"], "{name}");
        }
        assert_eq!(split("gpt-2", "a \n\nb"), ["a", " \n", "\n", "b"]);
        assert_eq!(split("llama-bpe", "a \n\n b"), ["a", " \n\n", " b"]);
        assert_eq!(split("llama-bpe", "a \n\n  1"), ["a", " \n\n", " ", " ", "1"]);
    }

    #[test]
    fn smollm_takes_digits_one_by_one() {
        assert_eq!(split("smollm", "in 2024!"), ["in", " ", "2", "0", "2", "4", "!"]);
        assert_eq!(split("smollm", "x  12 y's"), ["x", "  ", "1", "2", " y", "'s"]);
    }

    #[test]
    fn digits_by_three() {
        assert_eq!(split("llama-bpe", "12345"), ["123", "45"]);
        assert_eq!(split("qwen2", "123"), ["1", "2", "3"]);
        assert_eq!(split("falcon", "a 12345"), ["a", " ", "123", "45"]);
        assert_eq!(split("afmoe", "1234567 x12"), ["1", "234", "567", " x", "12"]);
        assert_eq!(split("falcon_e", "a` 123"), ["a", "`", " ", "1", "2", "3"]);
    }

    /// Expected pieces are from Hugging Face's `tokenizers` with the published expressions, including
    /// look-ahead.
    #[test]
    fn pieces_are_those_of_the_published_expressions() {
        const RECORDED: &str = include_str!("../../tests/data/golden/tokenizer/pieces.jsonl");
        #[derive(serde::Deserialize)]
        struct Case {
            pre: String,
            text: String,
            pieces: Vec<String>,
        }
        let mut n_cases = 0;
        for line in RECORDED.lines() {
            let Case { pre, text, pieces } = serde_json::from_str(line).unwrap();
            assert_eq!(split(&pre, &text), pieces, "{pre} of {text:?}");
            n_cases += 1;
        }
        assert!(n_cases >= 320, "only {n_cases}");
    }

    #[test]
    fn hostile_runs_take_no_quadratic_time() {
        for run in [" ", "\n", "a", "1", "!", "\u{2003}", " \n", "'"] {
            let text = run.repeat(1 << 17) + "x";
            for pre in PreTokenizer::all() {
                assert_eq!(Splitter::new(pre).split(&text).concat().len(), text.len());
            }
        }
    }
}
