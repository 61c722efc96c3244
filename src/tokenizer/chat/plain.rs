//! The text of messages is text: a control token that a message spells is not that token.
//!
//! A template puts messages and control tokens into one string. So that the two can be told apart in it, a
//! character that is not in use is put before every control token that a message spells, and taken out of the
//! rendered text again. Where it stood no control token is recognised; everything else is encoded as if it
//! had never been there. Messages without control tokens are not touched at all.

use std::collections::HashSet;

use serde_json::Value as Json;

use super::{ChatError, Extras, Message};
use crate::Tokenizer;

/// Characters that may be the mark: some of Unicode's private use that are not in use.
const MARKS: std::ops::RangeInclusive<char> = '\u{10_ff00}'..='\u{10_fffd}';

/// The mark of one conversation.
pub struct Mark(char);

impl Mark {
    /// A character that occurs in no message, in nothing that a template is given beside them, and in none of
    /// `texts`.
    ///
    /// # Errors
    /// [`ChatError::Refused`] if every character that may be one does.
    pub fn unused(messages: &[Message], extras: &Extras, texts: &[&str]) -> Result<Self, ChatError> {
        let mut used = HashSet::new();
        let mut note = |text: &str| used.extend(text.chars().filter(|c| MARKS.contains(c)));
        texts.iter().for_each(|text| note(text));
        for message in messages {
            each_text(&mut message.clone(), |text| note(text));
        }
        let variables = extras.variables.iter().map(|(_, value)| value);
        extras.tools.iter().chain(variables).for_each(|json| note(&json.to_string()));
        let mark = MARKS.into_iter().find(|mark| !used.contains(mark));
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

    /// Messages that are marked.
    pub fn put_all(&self, tokenizer: &Tokenizer, messages: &[Message]) -> Vec<Message> {
        let mut messages = messages.to_vec();
        for message in &mut messages {
            each_text(message, |text| *text = self.put(tokenizer, text));
        }
        messages
    }

    /// Tools and variables that are marked.
    pub fn put_extras(&self, tokenizer: &Tokenizer, extras: &Extras) -> Extras {
        let mut extras = extras.clone();
        let variables = extras.variables.iter_mut().map(|(_, value)| value);
        extras.tools.iter_mut().chain(variables).for_each(|json| self.put_json(tokenizer, json));
        extras
    }

    fn put_json(&self, tokenizer: &Tokenizer, json: &mut Json) {
        match json {
            Json::String(text) => *text = self.put(tokenizer, text),
            Json::Array(items) => items.iter_mut().for_each(|item| self.put_json(tokenizer, item)),
            Json::Object(object) => {
                *object = std::mem::take(object)
                    .into_iter()
                    .map(|(key, mut value)| {
                        self.put_json(tokenizer, &mut value);
                        (self.put(tokenizer, &key), value)
                    })
                    .collect();
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
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

/// Hands every text that people or programs wrote into a message to `each`; the role is none of them.
fn each_text(message: &mut Message, mut each: impl FnMut(&mut String)) {
    let Message { role: _, content, reasoning_content, tool_calls, tool_call_id, name } = message;
    each(content);
    [reasoning_content, tool_call_id, name].into_iter().flatten().for_each(&mut each);
    for call in tool_calls {
        call.id.iter_mut().chain([&mut call.name, &mut call.arguments]).for_each(&mut each);
    }
}
