//! Keeps message text plain: a control token spelled in a message does not become that token.
//!
//! A template joins messages and control tokens into one string. To tell them apart, an unused character is
//! inserted before every control token that a message spells, and removed again from the rendered text. No
//! control token is recognised at these positions; everything else is encoded as if the mark had never been
//! there. Messages without control tokens are not changed.

use std::collections::HashSet;

use serde_json::Value as Json;

use super::{ChatError, Extras, Message};
use crate::Tokenizer;

/// Characters that may serve as the mark: unused ones of Unicode's private use area.
const MARKS: std::ops::RangeInclusive<char> = '\u{10_ff00}'..='\u{10_fffd}';

/// Mark character of one conversation.
pub struct Mark(char);

impl Mark {
    /// Picks a character that occurs neither in the messages, nor in the other inputs of the template, nor in
    /// `texts`.
    ///
    /// # Errors
    /// [`ChatError::Refused`] if all candidate characters are in use.
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
            message: "messages use too many Unicode private-use characters".into(),
        })
    }

    /// Inserts marks before the control tokens that `text` spells.
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

    pub fn put_all(&self, tokenizer: &Tokenizer, messages: &[Message]) -> Vec<Message> {
        let mut messages = messages.to_vec();
        for message in &mut messages {
            each_text(message, |text| *text = self.put(tokenizer, text));
        }
        messages
    }

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

    /// Removes the marks, and returns the text and their positions in it.
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

/// Calls `each` for every text in a message that people or programs wrote; the role is not one.
fn each_text(message: &mut Message, mut each: impl FnMut(&mut String)) {
    let Message { role: _, content, reasoning_content, tool_calls, tool_call_id, name, more } = message;
    each(content);
    [reasoning_content, tool_call_id, name].into_iter().flatten().for_each(&mut each);
    more.iter_mut().for_each(|(_, text)| each(text));
    for call in tool_calls {
        call.id.iter_mut().chain([&mut call.name, &mut call.arguments]).for_each(&mut each);
    }
}
