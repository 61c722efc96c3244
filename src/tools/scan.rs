//! Finds marks in text that arrives in pieces: text that cannot begin a mark is passed on at once. Also
//! shared code of the parsers of calls that are not JSON.

use std::fmt::Debug;

use serde_json::json;

use super::Tool;

/// Result of searching for marks in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Position and index of the first mark.
    Mark(usize, usize),
    /// No mark, and none begins before this byte.
    None(usize),
}

/// Finds the first of `marks`, none of which is a prefix of another. Takes linear time; the caller passes
/// only the text held back last time, which is shorter than a mark, and the new text.
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

/// Result of matching the start of a text with words, with any whitespace between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// The words match this number of bytes.
    Whole(usize),
    /// The whole text matches the start of the words.
    Part,
    No,
}

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

/// Parser of a call that converts its arguments to JSON as they arrive.
pub trait Body: Debug + Send + Sync {
    /// Continues parsing at the start of `rest`.
    fn read(&mut self, rest: &str, tools: &[Tool]) -> Read;
}

/// Result of a parsing step.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    /// Number of bytes consumed, and the JSON to append to the arguments.
    Arguments(usize, String),
    /// Number of bytes consumed; the call begins with this name.
    Begun(usize, String),
    /// Number of bytes consumed; the call ends, and this completes its arguments.
    Ended(usize, String),
    /// More text is needed.
    More,
    Wrong,
}

/// Text as a JSON string, without the quotes.
pub fn escaped(text: &str) -> String {
    let quoted = json!(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
