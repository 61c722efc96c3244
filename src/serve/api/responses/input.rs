//! What clients of OpenAI's responses write: a text or items, which are messages, calls and what tools said.

use std::collections::HashMap;

use serde_json::Value;

use crate::grammar::Source;
use crate::serve::constraints::{Constraints, response_format};
use crate::serve::error::ApiError;
use crate::serve::fields::Fields;
use crate::serve::messages::{self, Talk, Thinking};
use crate::serve::model::Served;
use crate::serve::offer::Offer;
use crate::tokenizer::chat::{Message, ToolCall};

/// Most items of an input.
const ITEMS: usize = 4096;

/// The conversation, and the form of the answer.
pub fn read(fields: &Fields, served: &Served) -> Result<(Talk, Constraints), ApiError> {
    let constraints = Constraints::of_talk(fields, format(fields)?, Offer::responses(fields)?, served)?;
    let mut said = Conversation::default();
    said.system.extend(fields.text("instructions")?.map(str::to_owned));
    match fields.get("input") {
        None => return Err(ApiError::missing("input", "a text or a list of items")),
        Some(Value::String(text)) => said.messages.push(Message::new("user", text.as_str())),
        Some(_) => {
            for (at, item) in fields.list("input", ITEMS)?.into_iter().flatten().enumerate() {
                said.add(format!("input[{at}]"), item)?;
            }
        }
    }
    let Conversation { system, mut messages, .. } = said;
    if messages.is_empty() {
        return Err(ApiError::missing("input", "at least one message"));
    }
    if !system.is_empty() {
        messages.insert(0, Message::new("system", system.join("\n\n")));
    }
    let effort = match fields.object("reasoning")? {
        Some(reasoning) => Thinking::by_effort(reasoning.text("effort")?),
        None => Thinking::default(),
    };
    let extras = messages::extras(fields, effort)?;
    // An answer is a new one, whoever spoke last.
    Ok((Talk { messages, add_generation_prompt: true, begun: None, extras }, constraints))
}

fn format(fields: &Fields) -> Result<Option<(String, Source)>, ApiError> {
    let text = fields.object("text")?.unwrap_or_default();
    let Some(format) = text.object("format")? else { return Ok(None) };
    Ok(response_format(&format, false)?.map(|source| ("text.format".to_owned(), source)))
}

/// Items as messages: what an assistant thought, said and called in one go is one of them.
#[derive(Debug, Default)]
struct Conversation {
    /// What the system and the developer say. It stands at the head, wherever it was written.
    system: Vec<String>,
    messages: Vec<Message>,
    /// Thoughts that belong to the assistant's next message.
    thoughts: Option<String>,
    /// Names of the tools that were called, by the ids of the calls.
    names: HashMap<String, String>,
}

impl Conversation {
    fn add(&mut self, name: String, item: &Value) -> Result<(), ApiError> {
        let fields = Fields::inside(name.as_str(), item)?;
        let text = |name: &str| match fields.text(name)? {
            Some(text) => Ok(text.to_owned()),
            None => Err(ApiError::missing(&fields.path(name), "a text")),
        };
        match fields.text("type")?.unwrap_or("message") {
            "message" => {
                let message = messages::message(name, item)?;
                match message.role.as_str() {
                    "system" => self.system.push(message.content),
                    "assistant" => self.assistant(message),
                    _ => self.other(message),
                }
            }
            "reasoning" => {
                // A summary is not what the model thought.
                let thoughts = self::thoughts(&fields)?;
                self.thoughts = thoughts.or(self.thoughts.take());
            }
            "function_call" => {
                let call = ToolCall {
                    id: Some(text("call_id")?),
                    name: text("name")?,
                    arguments: fields.text("arguments")?.unwrap_or("{}").to_owned(),
                };
                self.names.extend(call.id.clone().map(|id| (id, call.name.clone())));
                self.assistant(Message { tool_calls: vec![call], ..Message::new("assistant", "") });
            }
            "function_call_output" => {
                let id = text("call_id")?;
                let content = messages::result(&fields.path("output"), fields.get("output"))?;
                let name = self.names.get(&id).cloned();
                self.other(Message { tool_call_id: Some(id), name, ..Message::new("tool", content) });
            }
            other => {
                let want = "one of message, reasoning, function_call, function_call_output";
                return Err(ApiError::field(fields.path("type"), want, &other.into()));
            }
        }
        Ok(())
    }

    fn other(&mut self, message: Message) {
        self.thoughts = None;
        self.messages.push(message);
    }

    fn assistant(&mut self, message: Message) {
        let thoughts = self.thoughts.take().or(message.reasoning_content);
        let Some(last) = self.messages.last_mut().filter(|last| last.role == "assistant") else {
            return self.messages.push(Message { reasoning_content: thoughts, ..message });
        };
        if !last.content.is_empty() && !message.content.is_empty() {
            last.content.push('\n');
        }
        last.content += &message.content;
        last.tool_calls.extend(message.tool_calls);
        last.reasoning_content = last.reasoning_content.take().or(thoughts);
    }
}

/// The words of a `reasoning` item, if it has them.
fn thoughts(fields: &Fields) -> Result<Option<String>, ApiError> {
    let parts = fields.list("content", ITEMS)?.unwrap_or_default();
    let words: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
    Ok((!words.is_empty()).then(|| words.join("\n")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(items: &Value) -> Result<Conversation, ApiError> {
        let mut said = Conversation::default();
        for (at, item) in items.as_array().unwrap().iter().enumerate() {
            said.add(format!("input[{at}]"), item)?;
        }
        Ok(said)
    }

    #[test]
    fn items_become_turns() {
        let said = said(&json!([
            { "role": "user", "content": "a" },
            { "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "b" }] },
            { "type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"x\": 1}" },
            { "type": "function_call", "call_id": "2", "name": "g", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "1", "output": "c" },
            { "type": "function_call_output", "call_id": "2",
                "output": [
                    { "type": "input_text", "text": "d" }, { "type": "input_image", "image_url": "x" }] },
            { "type": "message", "role": "developer", "content": "Be kind." },
        ]));
        let Conversation { system, messages, .. } = said.unwrap();
        assert_eq!(system, ["Be kind."]);
        let shown: Vec<(&str, &str)> =
            messages.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect();
        assert_eq!(
            shown,
            [
                ("user", "a"),
                ("assistant", "b"),
                ("tool", "c"),
                ("tool", "d\n[There is an image here, which this model cannot see.]")
            ]
        );
        assert_eq!(messages[1].reasoning_content.as_deref(), Some("hm"));
        assert_eq!(messages[1].tool_calls.len(), 2);
        assert_eq!(
            (messages[3].name.as_deref(), messages[3].tool_call_id.as_deref()),
            (Some("g"), Some("2"))
        );
    }

    #[test]
    fn items_that_do_not_fit_are_named() {
        for (item, param) in [
            (json!({ "type": "item_reference", "id": "x" }), "input[0].type"),
            (json!({ "type": "web_search_call", "id": "x" }), "input[0].type"),
            (json!({ "type": "function_call", "name": "f" }), "input[0].call_id"),
            (json!({ "type": "function_call_output", "call_id": "1", "output": 7 }), "input[0].output"),
            (
                json!({ "role": "user", "content": [{ "type": "input_image", "image_url": "http://x" }] }),
                "input[0].content[0].type",
            ),
            (json!(3), "input[0]"),
        ] {
            assert_eq!(said(&json!([item])).unwrap_err().param.as_deref(), Some(param), "{item}");
        }
    }
}
