//! From the text of an answer to the parts of a message. This is where tool calls and reasoning are split
//! off: every family of endpoints hands its text through here, as it comes.

use super::constraints::Constraints;

/// A part of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// Words of the answer.
    Content(String),
}

/// Splits the text of one choice.
#[derive(Clone, Debug, Default)]
pub struct Splitter;

impl Splitter {
    /// For an answer of that form.
    pub fn new(_constraints: &Constraints) -> Self {
        Self
    }

    /// Takes text as it comes.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        if text.is_empty() { Vec::new() } else { vec![Delta::Content(text.to_owned())] }
    }

    /// What was held back, when the answer ends.
    pub fn finish(&mut self) -> Vec<Delta> {
        Vec::new()
    }
}
