//! What Anthropic's clients write: messages of blocks, tools, thoughts, and formats.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::constraints::{Constraints, schema};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::messages::{self, ChatPrompt, Thinking};
use crate::model::Served;
use crate::tool_config::ToolConfig;
use sterna_grammar::Source;
use sterna_tokenizer::chat::{Message, ToolCall};

/// Most blocks of a message.
const BLOCKS: usize = 1024;

/// The conversation, and the form of the answer.
pub fn read(fields: &Fields, served: &Served) -> Result<(ChatPrompt, Constraints), ApiError> {
    let constraints =
        Constraints::of_conversation(fields, format(fields)?, ToolConfig::messages(fields)?, served)?;
    let list = messages::list(fields)?;
    let mut said = Conversation::default();
    let system = messages::content("system", fields.get("system"))?;
    let system = without_billing(&system);
    if !system.is_empty() {
        said.messages.push(Message::new("system", system));
    }
    for (at, message) in list.iter().enumerate() {
        said.add(&Fields::inside(format!("messages[{at}]"), message)?)?;
    }
    let extras = messages::extras(fields, thinking(fields)?)?;
    Ok((messages::going_on(fields, said.messages, extras)?, constraints))
}

/// Thoughts are off unless they are asked for. How many tokens they may have is a wish that nothing enforces.
fn thinking(fields: &Fields) -> Result<Thinking, ApiError> {
    let on = match fields.object("thinking")? {
        None => false,
        Some(thinking) => {
            thinking.int("budget_tokens", 1..=i64::from(i32::MAX))?;
            match thinking.text("type")? {
                Some("enabled" | "adaptive") => true,
                Some("disabled") => false,
                other => {
                    let want = "one of enabled, adaptive, disabled";
                    return Err(ApiError::field(thinking.path("type"), want, &other.into()));
                }
            }
        }
    };
    let effort = match fields.object("output_config")? {
        Some(config) => config.text("effort")?.map(str::to_owned),
        None => None,
    };
    Ok(Thinking { on: Some(on), effort })
}

/// The format of the answer: that of `output_config`, or where it stood before.
fn format(fields: &Fields) -> Result<Option<(String, Source)>, ApiError> {
    let config = fields.object("output_config")?.unwrap_or_default();
    let format = match config.object("format")? {
        Some(format) => Some(format),
        None => fields.object("output_format")?,
    };
    let Some(format) = format else { return Ok(None) };
    let kind = format.text("type")?;
    if kind != Some("json_schema") {
        return Err(ApiError::field(format.path("type"), "`json_schema`", &kind.into()));
    }
    let name = format.path("schema");
    match format.get("schema") {
        None => Err(ApiError::missing(&name, "a JSON schema")),
        Some(value) => match schema(value, true) {
            Some(source) => Ok(Some((name, source))),
            None => Err(ApiError::field(name, "a JSON schema", value)),
        },
    }
}

/// Messages as templates know them: answers of tools have a turn of their own.
#[derive(Debug, Default)]
struct Conversation {
    messages: Vec<Message>,
    /// Names of the tools that were called, by the ids of the calls.
    names: HashMap<String, String>,
}

impl Conversation {
    fn add(&mut self, fields: &Fields) -> Result<(), ApiError> {
        let role = match fields.text("role")? {
            Some(role @ ("user" | "assistant" | "system")) => role,
            Some(other) => {
                let want = "one of user, assistant, system";
                return Err(ApiError::field(fields.path("role"), want, &other.into()));
            }
            None => return Err(ApiError::missing(&fields.path("role"), "user or assistant")),
        };
        match fields.get("content") {
            None => return Err(ApiError::missing(&fields.path("content"), "a text or a list of blocks")),
            Some(Value::String(text)) => self.say(Message::new(role, text.as_str())),
            Some(_) => self.blocks(role, fields)?,
        }
        Ok(())
    }

    fn blocks(&mut self, role: &str, fields: &Fields) -> Result<(), ApiError> {
        let blocks = fields.list("content", BLOCKS)?.unwrap_or_default();
        let (mut texts, mut thoughts) = (Vec::new(), Vec::new());
        let (mut calls, mut n_answers) = (Vec::new(), 0);
        for (at, block) in blocks.iter().enumerate() {
            let block = Fields::inside(fields.path(&format!("content[{at}]")), block)?;
            let text = |name: &str| match block.text(name)? {
                Some(text) => Ok(text.to_owned()),
                None => Err(ApiError::missing(&block.path(name), "a text")),
            };
            match (block.text("type")?.unwrap_or("text"), role) {
                ("text", _) => texts.push(text("text")?),
                ("document", "user") => texts.push(document(&block)?),
                ("thinking", "assistant") => thoughts.push(text("thinking")?),
                // What it says is for the one who wrote it alone.
                ("redacted_thinking", "assistant") => {}
                ("tool_use", "assistant") => {
                    let arguments = block.object("input")?.and(block.get("input"));
                    let call = ToolCall {
                        id: Some(text("id")?),
                        name: text("name")?,
                        arguments: arguments.map_or_else(|| "{}".to_owned(), Value::to_string),
                    };
                    self.names.extend(call.id.clone().map(|id| (id, call.name.clone())));
                    calls.push(call);
                }
                ("tool_result", "user") => {
                    n_answers += 1;
                    self.answer(&block, text("tool_use_id")?)?;
                }
                (other, role) => {
                    let want = match role {
                        "assistant" => "one of text, thinking, tool_use",
                        "user" => "text, document or tool_result: this model reads nothing else",
                        _ => "`text`",
                    };
                    return Err(ApiError::field(block.path("type"), want, &other.into()));
                }
            }
        }
        if n_answers == 0 || !texts.is_empty() {
            self.say(Message {
                tool_calls: calls,
                reasoning_content: (!thoughts.is_empty()).then(|| thoughts.join("\n")),
                ..Message::new(role, texts.join("\n"))
            });
        }
        Ok(())
    }

    /// Answer of a tool. Templates have no place for failures, so that the text says it.
    fn answer(&mut self, block: &Fields, id: String) -> Result<(), ApiError> {
        let mut content = match block.get("content") {
            Some(Value::Array(parts)) => {
                let name = block.path("content");
                let parts = parts.iter().enumerate();
                let parts = parts.map(|(at, part)| plain(format!("{name}[{at}]"), part));
                messages::result(&name, Some(&parts.collect::<Result<_, _>>()?))?
            }
            other => messages::result(&block.path("content"), other)?,
        };
        if block.bool("is_error")?.unwrap_or(false) && !content.starts_with("Error") {
            content.insert_str(0, "Error: ");
        }
        let name = self.names.get(&id).cloned();
        self.messages.push(Message { tool_call_id: Some(id), name, ..Message::new("tool", content) });
        Ok(())
    }

    /// Turns of one speaker that follow each other are one, as templates want them.
    fn say(&mut self, message: Message) {
        let last = self.messages.last_mut().filter(|last| last.role == message.role);
        let Some(last) = last.filter(|last| last.role != "system") else {
            return self.messages.push(message);
        };
        if !last.content.is_empty() && !message.content.is_empty() {
            last.content.push('\n');
        }
        last.content += &message.content;
        last.tool_calls.extend(message.tool_calls);
        last.reasoning_content = last.reasoning_content.take().or(message.reasoning_content);
    }
}

/// A part of what a tool answered, a document as its text.
fn plain(name: String, part: &Value) -> Result<Value, ApiError> {
    match part.get("type").and_then(Value::as_str) {
        Some("document") => Ok(json!({ "text": document(&Fields::inside(name, part)?)? })),
        _ => Ok(part.clone()),
    }
}

/// The text of a document, behind its title and what is said of it.
fn document(block: &Fields) -> Result<String, ApiError> {
    let Some(source) = block.object("source")? else {
        return Err(ApiError::missing(&block.path("source"), "the text of the document"));
    };
    let text = match source.text("type")? {
        Some("text") => match source.text("data")? {
            Some(text) => text.to_owned(),
            None => return Err(ApiError::missing(&source.path("data"), "a text")),
        },
        Some("content") => messages::content(&source.path("content"), source.get("content"))?,
        other => {
            let want = "`text` or `content`: this model reads texts; send the text of the document";
            return Err(ApiError::field(source.path("type"), want, &other.into()));
        }
    };
    let about = [block.text("title")?, block.text("context")?].into_iter().flatten();
    Ok(about.filter(|line| !line.is_empty()).chain([text.as_str()]).collect::<Vec<_>>().join("\n"))
}

/// The system's text without the line that Claude Code begins it with. It is for the vendor's bookkeeping,
/// and has checksums of the conversation and of its first message: with it no conversation would find the
/// pages of another one, nor those of its own last turn.
fn without_billing(system: &str) -> &str {
    match system.split_once('\n') {
        _ if !system.starts_with("x-anthropic-billing-header:") => system,
        Some((_, rest)) => rest,
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_billing_is_left_out() {
        let line = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=00000;";
        assert_eq!(without_billing(line), "");
        assert_eq!(without_billing(&format!("{line}\nBe brief.\n{line}")), format!("Be brief.\n{line}"));
        for other in ["", "Be brief.", "x-anthropic-billing", &format!("Be brief.\n{line}")] {
            assert_eq!(without_billing(other), other);
        }
    }

    fn said(messages: &Value) -> Result<Vec<Message>, ApiError> {
        let mut said = Conversation::default();
        for (at, message) in messages.as_array().unwrap().iter().enumerate() {
            said.add(&Fields::inside(format!("messages[{at}]"), message)?)?;
        }
        Ok(said.messages)
    }

    #[test]
    fn blocks_become_turns() {
        let messages = said(&json!([
            { "role": "user", "content": "a" },
            { "role": "user", "content": [{ "type": "text", "text": "b" }] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "" },
                { "type": "redacted_thinking", "data": "x" },
                { "type": "text", "text": "c" },
                { "type": "tool_use", "id": "1", "name": "f", "input": { "z": 1, "a": 2 } },
                { "type": "tool_use", "id": "2", "name": "g", "input": {} }] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "1", "content": [
                    { "type": "text", "text": "x" }, { "type": "text", "text": "y" }] },
                { "type": "tool_result", "tool_use_id": "2", "content": "no disk", "is_error": true },
                { "type": "text", "text": "go on" }] },
        ]));
        let messages = messages.unwrap();
        let shown: Vec<(&str, &str)> =
            messages.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect();
        let wanted = [
            ("user", "a\nb"),
            ("assistant", "c"),
            ("tool", "x\ny"),
            ("tool", "Error: no disk"),
            ("user", "go on"),
        ];
        assert_eq!(shown, wanted);
        assert_eq!(messages[1].reasoning_content.as_deref(), Some("hm"));
        assert_eq!(messages[1].tool_calls[0].arguments, r#"{"z":1,"a":2}"#);
        assert_eq!(
            (messages[3].name.as_deref(), messages[3].tool_call_id.as_deref()),
            (Some("g"), Some("2"))
        );
    }

    #[test]
    fn documents_are_texts_and_images_of_tools_a_sentence() {
        let text = json!({ "type": "document", "title": "A list", "context": "of things",
            "source": { "type": "text", "media_type": "text/plain", "data": "hello" } });
        let content = json!({ "type": "document",
            "source": { "type": "content", "content": [{ "type": "text", "text": "b" }] } });
        let image =
            json!({ "type": "image", "source": { "type": "base64", "media_type": "image/png", "data": "" } });
        let said = said(&json!([{ "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "1",
                "content": [image, text, { "type": "text", "text": "c" }] },
            text, content, { "type": "text", "text": "hi" },
        ] }]));
        let said: Vec<String> = said.unwrap().into_iter().map(|message| message.content).collect();
        let list = "A list\nof things\nhello";
        let unseen = "[There is an image here, which this model cannot see.]";
        assert_eq!(said, [format!("{unseen}\n{list}\nc"), format!("{list}\nb\nhi")]);
    }

    #[test]
    fn blocks_that_do_not_fit_are_named() {
        let image = json!({ "type": "image", "source": { "type": "url", "url": "http://x" } });
        let cases = [
            (json!([{ "role": "king", "content": "a" }]), "messages[0].role"),
            (json!([{ "role": "user" }]), "messages[0].content"),
            (json!([{ "role": "user", "content": 3 }]), "messages[0].content"),
            (json!([{ "role": "user", "content": [image] }]), "messages[0].content[0].type"),
            (
                json!([{ "role": "assistant", "content": [{ "type": "tool_result", "tool_use_id": "1" }] }]),
                "messages[0].content[0].type",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "tool_result" }] }]),
                "messages[0].content[0].tool_use_id",
            ),
            (
                json!([{ "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "1", "content": [{ "type": "video" }] }] }]),
                "messages[0].content[0].content[0].type",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "document",
                    "source": { "type": "base64", "media_type": "application/pdf", "data": "" } }] }]),
                "messages[0].content[0].source.type",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "1", "content": [
                    { "type": "document", "source": { "type": "text" } }] }] }]),
                "messages[0].content[0].content[0].source.data",
            ),
            (
                json!([{ "role": "assistant", "content": [
                { "type": "tool_use", "id": "1", "name": "f", "input": "x" }] }]),
                "messages[0].content[0].input",
            ),
        ];
        for (messages, param) in cases {
            assert_eq!(said(&messages).unwrap_err().param.as_deref(), Some(param), "{messages}");
        }
    }
}
