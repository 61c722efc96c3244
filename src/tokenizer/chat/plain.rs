//! What people say in a conversation is text: a control token that a message spells is not that token.
//!
//! A template puts messages and control tokens into one string. So that the two can be told apart in it, a
//! character that nobody uses is put before every control token that a message spells, and taken out of the
//! rendered text again. Where it stood no control token is recognised; everything else is encoded as if it
//! had never been there. Messages without control tokens are not touched at all.

use super::{ChatError, Message};
use crate::tokenizer::Tokenizer;

/// Characters that may be the mark: some that Unicode keeps for private use, and nobody uses.
const MARKS: std::ops::RangeInclusive<char> = '\u{10_ff00}'..='\u{10_fffd}';

/// The mark of one conversation.
pub struct Mark(char);

impl Mark {
    /// A character that occurs in none of `texts`.
    ///
    /// # Errors
    /// [`ChatError::Refused`] if every character that may be one does.
    pub fn unused<'a>(texts: impl Iterator<Item = &'a str> + Clone) -> Result<Self, ChatError> {
        let free = |mark: &char| texts.clone().all(|text| !text.contains(*mark));
        let mark = MARKS.into_iter().find(free);
        mark.map(Self).ok_or_else(|| ChatError::Refused {
            message: "messages use too many of Unicode's characters for private use".into(),
        })
    }

    /// `text` with marks before the control tokens that it spells.
    pub fn put(&self, tokenizer: &Tokenizer, text: &str) -> String {
        let mut marked = String::with_capacity(text.len());
        let mut done = 0;
        for at in tokenizer.spelled(text) {
            marked.push_str(&text[done..at]);
            marked.push(self.0);
            done = at;
        }
        marked + &text[done..]
    }

    /// Messages whose content is marked.
    pub fn put_all(&self, tokenizer: &Tokenizer, messages: &[Message]) -> Vec<Message> {
        let put = |message: &Message| Message::new(&message.role, self.put(tokenizer, &message.content));
        messages.iter().map(put).collect()
    }

    /// The text without marks, and where they stood in what is left.
    pub fn take(&self, marked: &str) -> (String, Vec<usize>) {
        let mut text = String::with_capacity(marked.len());
        let mut plain = Vec::new();
        for (i, piece) in marked.split(self.0).enumerate() {
            if i > 0 && plain.last() != Some(&text.len()) {
                plain.push(text.len());
            }
            text.push_str(piece);
        }
        (text, plain)
    }
}
