//! Pre-tokenizers: where byte-level BPE may not merge across.
//!
//! Each is a list of regular expressions, as its model's authors published them, applied one after the
//! other: matches and the gaps between them become pieces, and the next expression splits those.
//! `pattern.rs` reads them. They are linear in the text, whatever the text is.

use super::TokenizerError;
use super::pattern::Pattern;

/// A pre-tokenizer as it is listed.
pub struct Kind {
    /// Its name in `tokenizer.ggml.pre` and for [`TokenizerOptions::pre`](super::TokenizerOptions::pre).
    pub name: &'static str,
    /// Other names that mean the same.
    aliases: &'static [&'static str],
    rules: &'static [Rule],
    /// A piece that is a token as it stands is not merged up.
    pub ignore_merges: bool,
    /// Whether texts begin with BOS where the file does not say.
    pub add_bos: bool,
}

struct Rule {
    pattern: &'static str,
    /// The published pattern has `\s+(?!\S)|\s+` at its end: a run of whitespace leaves its last character
    /// to the word that follows. `Pattern` has no look-ahead, so the pattern here ends in `\s+` and the last
    /// character is given back afterwards.
    give_back: GiveBack,
}

#[derive(Clone, Copy, PartialEq)]
enum GiveBack {
    Nothing,
    Whitespace,
    /// An earlier alternative takes whatever ends in a newline.
    WhitespaceButNewlines,
}

const fn rule(pattern: &'static str, give_back: GiveBack) -> Rule {
    Rule { pattern, give_back }
}

const GPT2: Rule =
    rule(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+", GiveBack::Whitespace);
const THREE_DIGITS: Rule = rule("[0-9][0-9][0-9]", GiveBack::Nothing);

/// Every pre-tokenizer there is.
pub const REGISTRY: &[Kind] = &[
    Kind {
        name: "llama-bpe",
        aliases: &["llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2", "pixtral"],
        rules: &[rule(
            concat!(
                r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|",
                r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
            ),
            GiveBack::WhitespaceButNewlines,
        )],
        ignore_merges: true,
        add_bos: true,
    },
    Kind {
        name: "gpt-2",
        aliases: &["phi-2", "olmo", "exaone4"],
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
        aliases: &["llama4", "kanana2"],
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
        aliases: &["deepseek-r1-qwen"],
        rules: &[rule(
            concat!(
                r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\r\n\p{L}\p{N}]?\p{L}+|",
                r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+"
            ),
            GiveBack::WhitespaceButNewlines,
        )],
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
        aliases: &[],
        rules: &[rule(r"\p{N}", GiveBack::Nothing), GPT2],
        ignore_merges: false,
        add_bos: false,
    },
];

impl Kind {
    /// Its expressions as they were published, look-ahead included.
    pub fn published(&self) -> impl Iterator<Item = String> {
        self.rules.iter().map(|rule| match rule.give_back {
            GiveBack::Nothing => rule.pattern.to_owned(),
            GiveBack::Whitespace | GiveBack::WhitespaceButNewlines => {
                let rest = rule.pattern.strip_suffix(r"|\s+").expect("it ends in whitespace");
                format!(r"{rest}|\s+(?!\S)|\s+")
            }
        })
    }
}

/// Every pre-tokenizer: its name and its expressions, applied one after the other. Of `\s+(?!\S)|\s+` at the
/// end of a published expression only `\s+` is here.
pub fn pre_tokenizers() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    REGISTRY.iter().map(|kind| (kind.name, kind.rules.iter().map(|rule| rule.pattern).collect()))
}

/// The names in [`REGISTRY`], for messages.
fn names() -> String {
    REGISTRY.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
}

/// The pre-tokenizer of that name or alias.
///
/// # Errors
/// [`TokenizerError::UnknownPre`] with the names there are.
pub fn by_name(name: &str) -> Result<&'static Kind, TokenizerError> {
    REGISTRY
        .iter()
        .find(|kind| kind.name == name || kind.aliases.contains(&name))
        .ok_or_else(|| TokenizerError::UnknownPre { found: name.to_owned(), known: names() })
}

/// A name of a pre-tokenizer as it is spelled here; an alias stays what it is.
///
/// # Errors
/// As [`by_name`].
pub fn pre_tokenizer_name(name: &str) -> Result<&str, TokenizerError> {
    by_name(name).map(|_| name)
}

/// A pre-tokenizer ready to split text.
pub struct PreTokenizer {
    rules: Vec<(Pattern, GiveBack)>,
}

impl PreTokenizer {
    /// Reads the rules of `kind`.
    pub fn new(kind: &Kind) -> Self {
        let read = |rule: &Rule| (Pattern::new(rule.pattern), rule.give_back);
        Self { rules: kind.rules.iter().map(read).collect() }
    }

    /// The pieces of `text`, in order; together they are `text`.
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
    let mut done = 0;
    while let Some((start, end)) = pattern.find_at(text, done) {
        if start > done {
            out.push(&text[done..start]);
        }
        let end = end - given_back(give_back, &text[start..end], end == text.len());
        out.push(&text[start..end]);
        done = end;
    }
    if done < text.len() {
        out.push(&text[done..]);
    }
}

/// Bytes at the end of a match that belong to the next piece.
fn given_back(rule: GiveBack, found: &str, at_end: bool) -> usize {
    let Some(last) = found.chars().next_back() else { return 0 };
    let taken = match rule {
        GiveBack::Nothing => false,
        GiveBack::Whitespace => last.is_whitespace(),
        GiveBack::WhitespaceButNewlines => last.is_whitespace() && !matches!(last, '\r' | '\n'),
    };
    if taken && !at_end && found.len() > last.len_utf8() { last.len_utf8() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(name: &str, text: &str) -> Vec<String> {
        let tokenizer = PreTokenizer::new(by_name(name).unwrap());
        let pieces = tokenizer.split(text);
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
        let message = by_name("superbpe").err().unwrap().to_string();
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
        assert_eq!(split("falcon_e", "a` 123"), ["a", "`", " ", "1", "2", "3"]);
    }

    /// Pieces by Hugging Face's `tokenizers` from the published expressions, look-ahead included.
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
        assert!(n_cases >= 90, "only {n_cases}");
    }

    #[test]
    fn hostile_runs_take_no_quadratic_time() {
        for run in [" ", "\n", "a", "1", "!", "\u{2003}", " \n", "'"] {
            let text = run.repeat(1 << 20) + "x";
            for kind in REGISTRY {
                assert_eq!(PreTokenizer::new(kind).split(&text).concat().len(), text.len());
            }
        }
    }
}
