//! Messages of a conversation, and their representation in templates.

use minijinja::Value;
use serde_json::{Map, Value as Json};

/// One message of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant` or `tool`.
    pub role: String,
    /// Text of the message.
    pub content: String,
    /// The assistant's reasoning before the text.
    pub reasoning_content: Option<String>,
    /// Tool calls of the assistant.
    pub tool_calls: Vec<ToolCall>,
    /// [`ToolCall::id`] of the call that a tool message answers.
    pub tool_call_id: Option<String>,
    /// Name of the tool in a tool message; otherwise the speaker's name.
    pub name: Option<String>,
    /// Further keys with their texts, for templates that read some.
    pub more: Vec<(&'static str, String)>,
}

/// A tool call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Id that the tool's answer refers to.
    pub id: Option<String>,
    /// Name of the tool.
    pub name: String,
    /// JSON as a string, as clients send it. Templates see the parsed value with keys in their order, or the
    /// string if it is not valid JSON.
    pub arguments: String,
}

impl Message {
    /// Creates a message of `role`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into(), ..Self::default() }
    }

    /// The message as templates see it, without empty keys. With `has_null_content`, the content of a message
    /// that only calls tools is none.
    pub(super) fn value(&self, has_null_content: bool) -> Value {
        let text = |key: &str, text: &Option<String>| Some((key.to_owned(), Value::from(text.as_deref()?)));
        let calls = (!self.tool_calls.is_empty()).then(|| {
            let calls = self.tool_calls.iter().map(ToolCall::value).collect::<Vec<_>>();
            ("tool_calls".to_owned(), Value::from(calls))
        });
        let is_null = has_null_content && self.content.is_empty() && calls.is_some();
        let content = if is_null { Value::from(()) } else { Value::from(self.content.as_str()) };
        let said = [("role", Value::from(self.role.as_str())), ("content", content)];
        let said = said.map(|(key, value)| (key.to_owned(), value));
        let more = [
            text("reasoning_content", &self.reasoning_content),
            calls,
            text("tool_call_id", &self.tool_call_id),
            text("name", &self.name),
        ];
        let others = self.more.iter().map(|(key, text)| ((*key).to_owned(), Value::from(text.as_str())));
        Value::from_pairs(said.into_iter().chain(more.into_iter().flatten()).chain(others))
    }
}

impl ToolCall {
    /// The arguments as JSON: an empty object for an empty text, the text itself if it is not valid JSON.
    pub fn json(&self) -> Json {
        match serde_json::from_str(&self.arguments) {
            Ok(arguments) => arguments,
            Err(_) if self.arguments.trim().is_empty() => Json::Object(Map::new()),
            Err(_) => self.arguments.as_str().into(),
        }
    }

    fn value(&self) -> Value {
        let function = [("name", Value::from(self.name.as_str())), ("arguments", value(&self.json()))];
        let id = self.id.as_deref().map(|id| ("id", Value::from(id)));
        let rest = [("type", Value::from("function")), ("function", Value::from_pairs(function))];
        Value::from_pairs(id.into_iter().chain(rest))
    }
}

/// JSON as templates see it, with keys in their order.
pub fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(is_true) => Value::from(*is_true),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(value).collect::<Vec<_>>()),
        Json::Object(object) => {
            Value::from_pairs(object.iter().map(|(key, json)| (key.clone(), value(json))))
        }
    }
}
