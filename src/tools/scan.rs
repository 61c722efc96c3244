//! Marks in text that comes in pieces: what cannot begin one is passed on at once; and what the readers of
//! calls that are not written in JSON have in common.

use std::fmt::Debug;

use serde_json::json;

use super::Tool;

/// Result of looking for marks in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The first one: where it begins, and which it is.
    Mark(usize, usize),
    /// None, and none begins before this byte.
    None(usize),
}

/// Looks for the first of `marks`, of which none begins another. Takes time in proportion to the text, and is
/// called again with what it held back alone, which is shorter than a mark.
pub fn find(text: &str, marks: &[&str]) -> Found {
    let firsts: Vec<char> = marks.iter().filter_map(|mark| mark.chars().next()).collect();
    for (at, _) in text.match_indices(|c| firsts.contains(&c)) {
        let rest = &text[at..];
        if let Some(which) = marks.iter().position(|mark| rest.starts_with(mark)) {
            return Found::Mark(at, which);
        }
        if marks.iter().any(|mark| mark.starts_with(rest)) {
            return Found::None(at);
        }
    }
    Found::None(text.len())
}

/// Match of the beginning of a text with these words, with any blanks between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// So many bytes of it do.
    Whole(usize),
    /// All of it does, and more is to come.
    Part,
    /// It does not.
    No,
}

/// See [`Prefix`].
pub fn prefix(text: &str, words: &[&str]) -> Prefix {
    let mut rest = text;
    for word in words {
        rest = rest.trim_start();
        match rest.strip_prefix(word) {
            Some(after) => rest = after,
            None if word.starts_with(rest) => return Prefix::Part,
            None => return Prefix::No,
        }
    }
    Prefix::Whole(text.len() - rest.len())
}

/// A call whose arguments become JSON as they are read.
pub trait Body: Debug + Send + Sync {
    /// Reads on at the beginning of `rest`.
    fn read(&mut self, rest: &str, tools: &[Tool]) -> Read;
}

/// Result of reading on.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// So many bytes are done with, and this belongs to the arguments.
    Arguments(usize, String),
    /// The call begins: its name is known.
    Begun(usize, String),
    /// The call has ended; this belongs to the arguments.
    Ended(usize, String),
    /// More text is wanted.
    More,
    /// This is no call.
    Wrong,
}

/// A text in JSON, without its quotes.
pub fn escaped(text: &str) -> String {
    let quoted = json!(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
