//! Text by a grammar: JSON, JSON schemas, regular expressions, choices, Lark and GBNF.
//!
//! A [`Source`] is what a user asks for. [`Grammars`] compiles it for one vocabulary, on a thread with a
//! large stack and within a time, because it comes from anyone. The result says which tokens may come next
//! (`engine::Grammar`), each set made beside the model's step. The parser is llguidance; a GBNF grammar is
//! read here and written as Lark (`gbnf/`).
//!
//! This module knows the vocabulary and the engine's trait, and must never know HTTP or the command line.
//! Start at [`Grammars::compile`].
#![forbid(unsafe_code)]

mod compile;
mod gbnf;
mod matching;
mod mend;
mod numbers;
mod regular;
mod schema;
mod text;
mod vocabulary;
mod workers;

#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use llguidance::panic_utils;
use serde_json::Value;

pub use compile::{Compiled, Grammars};
pub use gbnf::to_lark;
pub use regular::lark_to_regex;
pub use schema::names_types;

/// Source of a grammar.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Any JSON object.
    JsonObject,
    /// JSON that fits a schema.
    JsonSchema {
        /// The schema.
        schema: Value,
        /// True if every keyword must be enforced. If not, those that cannot be are left out, and
        /// [`Compiled::notes`] names them.
        strict: bool,
    },
    /// Text that a regular expression matches from its beginning to its end.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's form of Lark, which begins with the rule `start`.
    Lark(String),
    /// A grammar in llama.cpp's GBNF, which begins with the rule `root`; or Lark, if its first word is
    /// `%llguidance`, as in llama.cpp.
    Gbnf(String),
}

/// White space in JSON that a schema asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Space {
    /// At most one space between two words.
    #[default]
    Compact,
    /// A space, or one or two line ends and an indent of at most 20. Without a bound a small model writes
    /// line ends for ever.
    Free,
}

impl Space {
    /// Whitespace between two tokens of JSON, as a regular expression.
    fn pattern(self) -> &'static str {
        match self {
            Self::Compact => " ",
            Self::Free => r" |\n{1,2}[ \t]{0,20}",
        }
    }
}

/// Why a grammar cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// It is larger than it may be.
    #[error("the grammar has {got} {what}; at most {most} are allowed")]
    TooLarge {
        /// The thing that is counted.
        what: &'static str,
        /// The actual number.
        got: usize,
        /// The largest number allowed.
        most: usize,
    },
    /// A keyword of a strict JSON schema that cannot be enforced.
    #[error("the JSON schema{} has the keyword `{keyword}` at {at}, which cannot be enforced: {why}",
        .tool.as_ref().map(|tool| format!(" of the tool `{tool}`")).unwrap_or_default())]
    Keyword {
        /// The tool whose arguments the schema describes.
        tool: Option<String>,
        /// The keyword.
        keyword: String,
        /// Where it stands, as a JSON pointer.
        at: String,
        /// Why it cannot be enforced.
        why: String,
    },
    /// The text of a GBNF grammar.
    #[error("the GBNF grammar, line {line}, column {column}: {detail}")]
    Gbnf {
        /// Line, from 1.
        line: usize,
        /// Character of the line, from 1.
        column: usize,
        /// Expected and found.
        detail: String,
    },
    /// It is not well formed, or beyond what the parser does.
    #[error("the grammar cannot be used: {0}")]
    Invalid(String),
    /// It takes too long to compile.
    #[error("the grammar takes more than {} s to compile", .0.as_secs_f32())]
    TooSlow(Duration),
    /// Too many grammars are being compiled that take too long.
    #[error("{0} grammars are being compiled already; try again later")]
    Busy(usize),
    /// The vocabulary cannot be constrained.
    #[error("the vocabulary cannot be used with a grammar: {0}")]
    Vocabulary(String),
    /// No thread could be started.
    #[error("cannot start a thread for the grammar: {0}")]
    Thread(String),
}

/// Limits on the size and time of a grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of its text. What describes a schema, and no text must fit, does not count.
    pub bytes: usize,
    /// Definitions that a JSON schema may refer to.
    pub references: usize,
    /// Time to compile it, once the vocabulary is ready.
    pub time: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 128 << 10, references: 100, time: Duration::from_secs(5) }
    }
}

/// # Errors
/// [`GrammarError::TooLarge`] for more than `most`.
fn at_most(what: &'static str, got: usize, most: usize) -> Result<(), GrammarError> {
    if got > most { Err(GrammarError::TooLarge { what, got, most }) } else { Ok(()) }
}

/// Has the parser read something, and says what is wrong. It asserts, for instance where it quotes a part of
/// a schema.
fn caught<R, E: Display>(read: impl FnOnce() -> Result<R, E>) -> Result<R, String> {
    let read = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(read())));
    let read = read.map_err(|err| err.to_string()).and_then(|read| read.map_err(|err| err.to_string()));
    read.map_err(|err| said(&err))
}

/// Most characters of what the parser says.
const MOST_SAID: usize = 500;

/// Message of the parser, without the state and the traces that it appends.
fn said(text: &str) -> String {
    let text = text.split("\n<").next().unwrap_or_default();
    let text = text.strip_prefix("panic: ").unwrap_or(text).trim();
    // It quotes the line that is wrong, however long.
    match text.char_indices().nth(MOST_SAID) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

/// A text as a literal of Lark, which is JSON's but for the character U+007F.
fn quote(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
