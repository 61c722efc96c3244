//! Grammar-constrained text: JSON, JSON schemas, regular expressions, choices, Lark and GBNF.
//!
//! A [`Source`] is a user's request. [`Grammars`] compiles it for one vocabulary, on a thread with a large
//! stack and a timeout, because it is untrusted. The result computes which tokens may come next
//! (`engine::Grammar`), in parallel with the model's step. The parser is llguidance; a GBNF grammar is
//! converted to Lark (`gbnf/`).
//!
//! This crate knows the vocabulary and the engine's trait, but neither HTTP nor the command line. Start at
//! [`Grammars::compile`].
#![forbid(unsafe_code)]

mod compile;
mod effort;
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
    /// JSON that matches a schema.
    JsonSchema {
        /// The schema.
        schema: Value,
        /// True if every keyword must be enforced. Otherwise unsupported keywords that limit single values
        /// (`pattern`, bounds, `uniqueItems` and the like) are ignored and listed in [`Compiled::notes`].
        strict: bool,
    },
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in llguidance's dialect of Lark, starting at the rule `start`.
    Lark(String),
    /// A grammar in llama.cpp's GBNF, starting at the rule `root`; or Lark if it starts with `%llguidance`,
    /// as in llama.cpp.
    Gbnf(String),
}

/// White space allowed in JSON.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Space {
    /// At most one space after a comma or a colon.
    #[default]
    Compact,
    /// A space, or one or two newlines and an indent of at most 20. Without a bound, a small model writes
    /// newlines for ever.
    Free,
}

impl Space {
    /// Whitespace that may be between any two tokens of JSON, as a regular expression.
    fn pattern(self) -> &'static str {
        match self {
            // Nothing: no character is in this class.
            Self::Compact => "[ &&a]",
            Self::Free => r" |\n{1,2}[ \t]{0,20}",
        }
    }
}

/// Errors of compiling or following a grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The grammar exceeds a size limit.
    #[error("the grammar has {got} {what}; at most {most} are allowed")]
    TooLarge {
        /// The unit that is counted.
        what: &'static str,
        /// The actual number.
        got: usize,
        /// The largest number allowed.
        most: usize,
    },
    /// A keyword of a JSON schema cannot be enforced.
    #[error("the JSON schema{} has the keyword `{keyword}` at {at}, which cannot be enforced: {why}",
        .tool.as_ref().map(|tool| format!(" of the tool `{tool}`")).unwrap_or_default())]
    Keyword {
        /// The tool whose arguments the schema describes.
        tool: Option<String>,
        /// The keyword.
        keyword: String,
        /// Position, as a JSON pointer.
        at: String,
        /// Reason why it cannot be enforced.
        why: String,
    },
    /// Syntax error in a GBNF grammar.
    #[error("the GBNF grammar, line {line}, column {column}: {detail}")]
    Gbnf {
        /// Line, from 1.
        line: usize,
        /// Character in the line, from 1.
        column: usize,
        /// The expected and the found text.
        detail: String,
    },
    /// The grammar is malformed, or the parser does not support it.
    #[error("the grammar cannot be used: {0}")]
    Invalid(String),
    /// It takes too long to compile.
    #[error("the grammar takes more than {} s to compile", .0.as_secs_f32())]
    TooSlow(Duration),
    /// Too many slow grammars are being compiled.
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
    /// Bytes of its text; of schemas, only those of constants and patterns count.
    pub bytes: usize,
    /// Bytes of its schemas in all, without their descriptive parts.
    pub schema_bytes: usize,
    /// Definitions that a JSON schema may refer to.
    pub references: usize,
    /// Time to compile it, once the vocabulary is ready.
    pub time: Duration,
    /// Time to find the tokens that may come next.
    pub mask_time: Duration,
    /// Work on the states of the lexer for one sequence, in expressions of the parser. It bounds the memory:
    /// a few bytes per expression.
    pub lexer_work: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 128 << 10,
            schema_bytes: 1 << 20,
            references: 4000,
            time: Duration::from_secs(5),
            mask_time: Duration::from_secs(1),
            lexer_work: 20_000_000,
        }
    }
}

/// # Errors
/// [`GrammarError::TooLarge`] for more than `most`.
fn at_most(what: &'static str, got: usize, most: usize) -> Result<(), GrammarError> {
    if got > most { Err(GrammarError::TooLarge { what, got, most }) } else { Ok(()) }
}

/// Runs the parser and converts errors and panics to messages. It panics, for instance, when it quotes part
/// of a schema.
fn caught<R, E: Display>(read: impl FnOnce() -> Result<R, E>) -> Result<R, String> {
    let read = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(read())));
    let read = read.map_err(|err| err.to_string()).and_then(|read| read.map_err(|err| err.to_string()));
    read.map_err(|err| parser_message(&err))
}

/// Longest message of the parser, in characters.
const MAX_MESSAGE_CHARS: usize = 500;

/// Message of the parser, without the state and backtrace that it appends.
fn parser_message(text: &str) -> String {
    let text = text.split("\n<").next().unwrap_or_default();
    let text = text.strip_prefix("panic: ").unwrap_or(text).trim();
    if text.starts_with("assertion failed: grammar.symbols.len()") {
        return "it has too many rules: at most 65525 are allowed, several for each property".to_owned();
    }
    // It quotes the whole wrong line, however long.
    match text.char_indices().nth(MAX_MESSAGE_CHARS) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text.to_owned(),
    }
}

/// Quotes a text as a Lark literal: like JSON, except for U+007F.
fn quote(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}
