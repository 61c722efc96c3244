//! Splits the text of an answer into the parts of a message: text, tool calls and thoughts.

use schemars::JsonSchema;
use serde::Serialize;

use super::answer::FinishReason;
use sterna_tokenizer::{Special, Tokenizer};
pub use sterna_tools::Delta;
use sterna_tools::{Parser, ParserOptions};

/// Splits the text of one choice.
#[derive(Debug, Default)]
pub struct Splitter {
    /// `None` if everything is text.
    parser: Option<Parser>,
    thoughts: String,
}

impl Splitter {
    /// A splitter with these parser options.
    pub fn new(reading: ParserOptions) -> Self {
        let splits = reading.format.is_some() || reading.thoughts.is_some();
        Self { parser: splits.then(|| Parser::new(reading)), thoughts: String::new() }
    }

    /// Takes more text.
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

    /// Deltas of the text that was held back, after the answer has ended.
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

    /// Number of tokens of the thoughts, counted by tokenising their text: the original tokens are not known.
    pub fn n_thoughts(&self, tokenizer: &Tokenizer) -> usize {
        tokenizer.encode(&self.thoughts, Special::AsText, false).len()
    }

    /// Finish reason of a message: tool calls if there are any, unless it was cut off.
    pub fn finish_reason(&self, reason: FinishReason) -> FinishReason {
        let calls = self.parser.as_ref().is_some_and(|parser| parser.n_calls() > 0);
        if calls && reason == FinishReason::Stop { FinishReason::ToolCalls } else { reason }
    }
}

/// A part of a message in OpenAI's chunks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct MessageDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("const" = "assistant"))]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCallDelta>,
}

/// The start of a call, or more of its arguments.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
struct ToolCallDelta {
    /// Index among the calls of the message.
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("const" = "function"))]
    kind: Option<&'static str>,
    function: FunctionDelta,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(inline)]
struct FunctionDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    arguments: String,
}

impl MessageDelta {
    /// The start of a message.
    pub fn begin() -> Self {
        Self { role: Some("assistant"), content: Some(None), ..Self::default() }
    }

    /// A part of a message; `None` if chunks do not show it.
    pub fn of(delta: Delta) -> Option<Self> {
        let call = |index, id: Option<String>, name, arguments| {
            let kind = id.is_some().then_some("function");
            let call = ToolCallDelta { index, id, kind, function: FunctionDelta { name, arguments } };
            Some(Self { tool_calls: vec![call], ..Self::default() })
        };
        match delta {
            Delta::Content(text) => Some(Self { content: Some(Some(text)), ..Self::default() }),
            Delta::Reasoning(text) => Some(Self { reasoning_content: Some(text), ..Self::default() }),
            Delta::CallBegun { index, id, name } => call(index, Some(id), Some(name), String::new()),
            Delta::Arguments { index, text } => call(index, None, None, text),
            Delta::CallEnded { .. } => None,
        }
    }
}

/// A whole message in OpenAI's answers.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct AssistantMessage {
    #[schemars(extend("const" = "assistant"))]
    role: &'static str,
    /// Null if there are only calls.
    content: Option<String>,
    refusal: (),
    #[serde(skip_serializing_if = "String::is_empty")]
    reasoning_content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct ToolCall {
    id: String,
    #[serde(rename = "type")]
    #[schemars(extend("const" = "function"))]
    kind: &'static str,
    function: Function,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(inline)]
struct Function {
    name: String,
    /// JSON, as the model wrote it.
    arguments: String,
}

impl Default for AssistantMessage {
    fn default() -> Self {
        Self {
            role: "assistant",
            content: Some(String::new()),
            refusal: (),
            reasoning_content: String::new(),
            tool_calls: Vec::new(),
        }
    }
}

impl AssistantMessage {
    /// Appends a part.
    pub fn add(&mut self, delta: MessageDelta) {
        for ToolCallDelta { index, id, kind, function } in delta.tool_calls {
            if let (Some(id), Some(kind), Some(name)) = (id, kind, function.name) {
                let function = Function { name, arguments: String::new() };
                self.tool_calls.push(ToolCall { id, kind, function });
                self.content.take_if(|content| content.is_empty());
            }
            self.tool_calls[index].function.arguments += &function.arguments;
        }
        if let Some(text) = delta.content.flatten().filter(|text| !text.is_empty()) {
            *self.content.get_or_insert_default() += &text;
        }
        self.reasoning_content += &delta.reasoning_content.unwrap_or_default();
    }
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
        assert_eq!(splitter.finish_reason(FinishReason::Stop), FinishReason::ToolCalls);
        assert_eq!(splitter.finish_reason(FinishReason::Length), FinishReason::Length);
        let chunks: Vec<MessageDelta> = deltas.into_iter().filter_map(MessageDelta::of).collect();
        let begun = serde_json::json!({ "tool_calls": [{
            "index": 0, "id": chunks[2].tool_calls[0].id, "type": "function",
            "function": { "name": "f", "arguments": "" },
        }] });
        assert_eq!(serde_json::to_value(&chunks[2]).unwrap(), begun);
        let mut message = AssistantMessage::default();
        chunks.into_iter().for_each(|chunk| message.add(chunk));
        let message = serde_json::to_value(message).unwrap();
        assert_eq!(message["reasoning_content"], "hm");
        assert_eq!(message["content"], "Well.\n");
        assert_eq!(message["tool_calls"][0]["function"]["arguments"], "{\"a\": 1}");
        let mut plain = Splitter::new(ParserOptions::default());
        assert_eq!(plain.push("<think>"), [Delta::Content("<think>".into())]);
        assert_eq!(plain.finish_reason(FinishReason::Stop), FinishReason::Stop);
    }
}
