//! From the text of an answer to the parts of a message: tool calls and thoughts are split off on the way.

use serde_json::{Value, json};

use sterna_tokenizer::{Special, Tokenizer};
pub use sterna_tools::Delta;
use sterna_tools::{Parser, ParserOptions};

/// Splits the text of one choice.
#[derive(Debug, Default)]
pub struct Splitter {
    /// `None` if all of it is the answer's text.
    parser: Option<Parser>,
    thoughts: String,
}

impl Splitter {
    /// Reads text as `reading` says.
    pub fn new(reading: ParserOptions) -> Self {
        let splits = reading.format.is_some() || reading.thoughts.is_some();
        Self { parser: splits.then(|| Parser::new(reading)), thoughts: String::new() }
    }

    /// Takes text as it comes.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        match &mut self.parser {
            Some(parser) => {
                let deltas = parser.push(text);
                self.note(deltas)
            }
            None if text.is_empty() => Vec::new(),
            None => vec![Delta::Content(text.to_owned())],
        }
    }

    /// Deltas of the text that was held back, when the answer ends.
    pub fn finish(&mut self) -> Vec<Delta> {
        let deltas = self.parser.as_mut().map(Parser::finish).unwrap_or_default();
        self.note(deltas)
    }

    fn note(&mut self, deltas: Vec<Delta>) -> Vec<Delta> {
        for delta in &deltas {
            if let Delta::Reasoning(text) = delta {
                self.thoughts += text;
            }
        }
        deltas
    }

    /// Number of tokens of its thoughts: as many as their text has, since their own are not known.
    pub fn n_thoughts(&self, tokenizer: &Tokenizer) -> usize {
        tokenizer.encode(&self.thoughts, Special::AsText, false).len()
    }

    /// Reason of a message's end: one that calls ends with its calls, unless it was cut off.
    pub fn finish_reason(&self, reason: &'static str) -> &'static str {
        let calls = self.parser.as_ref().is_some_and(|parser| parser.n_calls() > 0);
        if calls && reason == "stop" { "tool_calls" } else { reason }
    }
}

/// A part of a message as OpenAI's chunks have it; `None` if they say nothing of it.
pub fn to_json(delta: Delta) -> Option<Value> {
    match delta {
        Delta::Content(text) => Some(json!({ "content": text })),
        Delta::Reasoning(text) => Some(json!({ "reasoning_content": text })),
        Delta::CallBegun { index, id, name } => Some(json!({ "tool_calls": [{
            "index": index,
            "id": id,
            "type": "function",
            "function": { "name": name, "arguments": "" },
        }] })),
        Delta::Arguments { index, text } => {
            Some(json!({ "tool_calls": [{ "index": index, "function": { "arguments": text } }] }))
        }
        Delta::CallEnded { .. } => None,
    }
}

/// A whole message as OpenAI's answers have it.
pub fn message(deltas: Vec<Delta>) -> Value {
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut calls: Vec<(String, String, String)> = Vec::new();
    for delta in deltas {
        match delta {
            Delta::Content(text) => content += &text,
            Delta::Reasoning(text) => reasoning += &text,
            Delta::CallBegun { id, name, .. } => calls.push((id, name, String::new())),
            Delta::Arguments { index, text } => calls[index].2 += &text,
            Delta::CallEnded { .. } => {}
        }
    }
    let is_text = calls.is_empty() || !content.is_empty();
    let mut message = json!({
        "role": "assistant",
        "content": is_text.then_some(content),
        "refusal": null,
    });
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        let calls = calls.into_iter().map(|(id, name, arguments)| {
            json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
        });
        message["tool_calls"] = calls.collect();
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use sterna_tools::{Format, THINK, Thoughts};

    #[test]
    fn thoughts_and_calls_are_parts_of_a_message() {
        let reading = || ParserOptions {
            format: Some(Format::Hermes),
            thoughts: Some(Thoughts::Marked(&THINK)),
            ..Default::default()
        };
        let text =
            "<think>hm</think>Well.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
        let mut splitter = Splitter::new(reading());
        let mut deltas = splitter.push(text);
        deltas.extend(splitter.finish());
        assert_eq!(splitter.finish_reason("stop"), "tool_calls");
        assert_eq!(splitter.finish_reason("length"), "length");
        let chunks: Vec<Value> = deltas.iter().cloned().filter_map(to_json).collect();
        assert!(chunks.iter().any(|chunk| chunk["tool_calls"][0]["function"]["name"] == "f"), "{chunks:?}");
        let message = message(deltas);
        assert_eq!(message["reasoning_content"], "hm");
        assert_eq!(message["content"], "Well.\n");
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}");
        let mut plain = Splitter::new(ParserOptions::default());
        assert_eq!(plain.push("<think>"), [Delta::Content("<think>".into())]);
        assert_eq!(plain.finish_reason("stop"), "stop");
    }
}
