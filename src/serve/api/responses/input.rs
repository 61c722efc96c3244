//! Requests of OpenAI's responses API: a text or items, which are messages, tool calls and tool results.
//! Items of tools that OpenAI's servers run become calls and results if they have both; others are left out.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value};

use super::tools::{self, ItemTools, Names, ResponsesTools, flat, with_input};
use crate::constraints::{AnswerForm, Constraints, TextFormat, text_format};
use crate::error::ApiError;
use crate::fields::{Fields, Kind, missing, request};
use crate::images::{self, Images};
use crate::kinds::{Any, Array, List, Object, Text, TextOr};
use crate::messages::{self, ChatPrompt, Message, TemplateFields, Thinking};
use crate::model::Served;
use crate::results;
use sterna_grammar::Source;
use sterna_tokenizer::chat::{self, ToolCall};

/// Maximum items of an input.
const ITEMS: usize = 4096;

/// Representation for the model of an item of a tool that it cannot call itself.
#[derive(Clone, Copy, Debug)]
enum Shown {
    /// A call of the tool with these fields as its arguments.
    Call(&'static str, &'static [&'static str]),
    /// A tool result: the first of these fields that is present.
    Answer(&'static [&'static str]),
    /// Both, if the result is present.
    Done(&'static str, &'static [&'static str], &'static [&'static str]),
    /// Left out: it has nothing that the model could use, or only OpenAI's servers can read it.
    LeftOut,
}

/// Types of items besides those in [`Conversation::add`], from the specifications of OpenAI and Codex.
const KINDS: &[(&str, Shown)] = &[
    ("additional_tools", Shown::LeftOut),
    ("apply_patch_call", Shown::Call("apply_patch", &["operation"])),
    ("apply_patch_call_output", Shown::Answer(&["output", "status"])),
    ("code_interpreter_call", Shown::Done("code_interpreter", &["code"], &["outputs"])),
    ("compaction", Shown::LeftOut),
    ("compaction_summary", Shown::LeftOut),
    // The model should answer, rather than summarise.
    ("compaction_trigger", Shown::LeftOut),
    ("computer_call", Shown::Call("computer", &["action", "actions"])),
    ("computer_call_output", Shown::Answer(&["output"])),
    ("configuration_update", Shown::LeftOut),
    ("context_compaction", Shown::LeftOut),
    ("file_search_call", Shown::Done("file_search", &["queries"], &["results"])),
    ("image_generation_call", Shown::LeftOut),
    ("item_reference", Shown::LeftOut),
    ("local_shell_call", Shown::Call("local_shell", &["action"])),
    ("local_shell_call_output", Shown::Answer(&["output"])),
    ("mcp_approval_request", Shown::LeftOut),
    ("mcp_approval_response", Shown::LeftOut),
    ("mcp_list_tools", Shown::LeftOut),
    ("program", Shown::Call("program", &["code"])),
    ("program_output", Shown::Answer(&["result"])),
    ("shell_call", Shown::Call("shell", &["action"])),
    ("shell_call_output", Shown::Answer(&["output"])),
    ("tool_search_call", Shown::LeftOut),
    ("tool_search_output", Shown::LeftOut),
    ("web_search_call", Shown::LeftOut),
];

request! {
    /// An input with all fields of its response.
    pub struct ResponsesInput {
        ..ResponsesTools,
        ..TemplateFields,
        ..AnswerForm,
        /// A text or items, some of which add tools.
        input: TextOr<InputItem>(1) or missing("a text or a list of items"),
        instructions: Text,
        text: Object<TextConfig>,
        reasoning: Object<Reasoning>,
    }
}

request! {
    /// The form of a text.
    pub struct TextConfig {
        format: Object<TextFormat>,
    }
}

request! {
    /// Amount of thinking.
    pub struct Reasoning {
        effort: Text,
    }
}

request! {
    /// A message, or an item of another type.
    pub enum InputItem {
        Message,
        OtherItem,
        UnreadItem,
    }
}

request! {
    /// An item that is not shown to the model.
    pub struct UnreadItem of { "enum": unread() } {}
}

request! {
    /// An item other than a message.
    pub struct OtherItem of { "type": ["string", "null"] } {
        ..ItemTools,
        ..ItemParts,
        /// An item with an id, and without a role and a type, is a reference.
        role: Any,
        id: Text,
        call_id: Text,
        namespace: Text,
        /// The namespace of an MCP tool.
        server_label: Text,
        name: Text,
        /// JSON in a text.
        arguments: Text,
        /// Input of a custom tool's call.
        input: Text,
        /// Error of an MCP tool.
        error: Any,
        /// A text, or parts.
        content: Any,
    }
}

request! {
    /// Fields of tool items: parts of calls and results.
    pub enum ItemParts = parts();
}

/// Names of [`ItemParts`].
fn parts() -> BTreeSet<&'static str> {
    let names = KINDS.iter().flat_map(|(_, shown)| match shown {
        Shown::Call(_, names) | Shown::Answer(names) => [*names, &[]],
        Shown::Done(_, names, answers) => [*names, *answers],
        Shown::LeftOut => [&[] as &[&str], &[]],
    });
    names.flatten().copied().collect()
}

/// Types of items that are never shown to the model.
fn unread() -> Vec<&'static str> {
    let unread = KINDS.iter().filter(|(_, shown)| matches!(shown, Shown::LeftOut));
    unread.map(|(kind, _)| *kind).collect()
}

/// Reads the conversation, the constraints of the answer, and the names of the tools that it may call.
pub fn read(
    fields: &Fields<'_, ResponsesInput>,
    served: &Served,
) -> Result<(ChatPrompt, Constraints, Names), ApiError> {
    let (tool_config, names) = tools::read(&fields.part(), fields.input().ok())?;
    let constraints = Constraints::of_conversation(&fields.part(), format(fields)?, tool_config, served)?;
    let mut said = Conversation { images: Images::of(served), ..Conversation::default() };
    said.system.extend(fields.instructions()?.map(str::to_owned));
    match fields.input()? {
        Value::String(text) => said.messages.push(chat::Message::new("user", text.as_str())),
        items => {
            for item in List::<InputItem>::new(ITEMS).read("input".to_owned(), items)?.iter() {
                said.add(&item?)?;
            }
        }
    }
    let Conversation { system, mut messages, images, mut left_out, .. } = said;
    left_out.sort_unstable();
    left_out.dedup();
    if !left_out.is_empty() {
        tracing::warn!("`input`: items of these types are left out: {}", left_out.join(", "));
    }
    if messages.is_empty() {
        return Err(ApiError::missing("input", "at least one message"));
    }
    if !system.is_empty() {
        messages.insert(0, chat::Message::new("system", system.join("\n\n")));
    }
    let reasoning = fields.reasoning()?.unwrap_or_default();
    let extras = messages::extras(&fields.part(), Thinking::by_effort(reasoning.effort()?))?;
    // Always generates a new message, whichever role spoke last.
    Ok((
        ChatPrompt {
            messages,
            add_generation_prompt: true,
            assistant_prefix: None,
            extras,
            images: images.list,
        },
        constraints,
        names,
    ))
}

fn format(fields: &Fields<'_, ResponsesInput>) -> Result<Option<(String, Source)>, ApiError> {
    let text = fields.text()?.unwrap_or_default();
    let Some(format) = text.format()? else { return Ok(None) };
    Ok(text_format(&format)?.map(|source| ("text.format".to_owned(), source)))
}

/// Items as messages: consecutive reasoning, text and calls of the assistant form one message.
#[derive(Debug, Default)]
struct Conversation {
    /// Text of the system and the developer. It is moved to the start of the conversation.
    system: Vec<String>,
    messages: Vec<chat::Message>,
    /// Images in the messages.
    images: Images,
    /// Reasoning that belongs to the assistant's next message.
    thoughts: Option<String>,
    /// Names of the called tools, by call id.
    names: HashMap<String, String>,
    /// Types of items that were left out.
    left_out: Vec<&'static str>,
}

impl Conversation {
    fn add(&mut self, item: &Fields<'_, InputItem>) -> Result<(), ApiError> {
        let fields = item.part::<OtherItem>();
        let there = |name: &str, text: Option<&str>| match text {
            Some(text) => Ok(text.to_owned()),
            None => Err(ApiError::missing(&fields.path(name), "a text")),
        };
        let call_id = || there("call_id", fields.call_id()?);
        let name = || there("name", fields.name()?);
        let is_reference = fields.role()?.is_none() && !matches!(fields.id(), Ok(None));
        let output = fields.given(&["output"]);
        match item.r#type()?.unwrap_or(if is_reference { "item_reference" } else { "message" }) {
            "message" => {
                let message = messages::message(&item.part(), &mut self.images)?;
                match message.role.as_str() {
                    "system" => self.system.push(message.content),
                    "assistant" => self.assistant(message),
                    _ => self.other(message),
                }
            }
            "reasoning" => {
                // A summary is not the model's own reasoning.
                let thoughts = self::thoughts(&fields)?;
                self.thoughts = thoughts.or(self.thoughts.take());
            }
            "function_call" => {
                let arguments = fields.arguments()?.unwrap_or("{}").to_owned();
                self.call(Some(call_id()?), flat(fields.namespace()?, &name()?), arguments);
            }
            "custom_tool_call" => {
                let name = flat(fields.namespace()?, &name()?);
                self.call(Some(call_id()?), name, with_input(&there("input", fields.input()?)?));
            }
            "function_call_output" | "custom_tool_call_output" => {
                let content = results::text(&fields.path("output"), output, &mut self.images);
                self.answer(Some(call_id()?), content);
            }
            "mcp_call" => match output.or(fields.error()?) {
                Some(answer) => {
                    let name = flat(fields.server_label()?, &name()?);
                    self.call(id(&fields), name, fields.arguments()?.unwrap_or("{}").to_owned());
                    let content = results::text(&fields.path("output"), Some(answer), &mut self.images);
                    self.answer(id(&fields), content);
                }
                None => self.left_out.push("mcp_call"),
            },
            // A message from another of the client's agents.
            "agent_message" => {
                let content = results::text(&fields.path("content"), fields.content()?, &mut self.images);
                self.other(chat::Message::new("user", content));
            }
            other => match KINDS.iter().find(|(kind, _)| *kind == other) {
                Some((kind, shown)) => self.show(kind, *shown, &fields),
                None => {
                    let want =
                        "message, function_call, function_call_output, or another type of OpenAI's items";
                    return Err(ApiError::field(fields.path("type"), want, &other.into()));
                }
            },
        }
        Ok(())
    }

    /// Adds an item of a tool that the model cannot call here.
    fn show(&mut self, kind: &'static str, shown: Shown, fields: &Fields<'_, OtherItem>) {
        let arguments = |names: &[&str]| {
            let there =
                names.iter().filter_map(|name| Some(((*name).to_owned(), fields.given(&[name])?.clone())));
            Value::Object(there.collect::<Map<_, _>>()).to_string()
        };
        let answer = |names: &[&str], images: &mut Images| {
            Some(results::text(&fields.path(names[0]), Some(fields.given(names)?), images))
        };
        match shown {
            Shown::Call(tool, names) => self.call(id(fields), tool.to_owned(), arguments(names)),
            Shown::Answer(names) => {
                let content = answer(names, &mut self.images).unwrap_or_default();
                self.answer(id(fields), content);
            }
            Shown::Done(tool, names, answers) => match answer(answers, &mut self.images) {
                Some(content) => {
                    self.call(id(fields), tool.to_owned(), arguments(names));
                    self.answer(id(fields), content);
                }
                None => self.left_out.push(kind),
            },
            Shown::LeftOut => self.left_out.push(kind),
        }
    }

    fn call(&mut self, id: Option<String>, name: String, arguments: String) {
        self.names.extend(id.clone().map(|id| (id, name.clone())));
        let call = ToolCall { id, name, arguments };
        self.assistant(chat::Message { tool_calls: vec![call], ..chat::Message::new("assistant", "") });
    }

    fn answer(&mut self, id: Option<String>, content: String) {
        let name = id.as_ref().and_then(|id| self.names.get(id).cloned());
        self.other(chat::Message { tool_call_id: id, name, ..chat::Message::new("tool", content) });
    }

    fn other(&mut self, message: chat::Message) {
        self.thoughts = None;
        self.messages.push(message);
    }

    fn assistant(&mut self, message: chat::Message) {
        let thoughts = self.thoughts.take().or(message.reasoning_content);
        let Some(last) = self.messages.last_mut().filter(|last| last.role == "assistant") else {
            return self.messages.push(chat::Message { reasoning_content: thoughts, ..message });
        };
        if !last.content.is_empty() && !message.content.is_empty() {
            images::separate(&mut last.content, &message.content);
        }
        last.content += &message.content;
        last.tool_calls.extend(message.tool_calls);
        last.reasoning_content = last.reasoning_content.take().or(thoughts);
    }
}

/// Common part of the ids of a call and its result, if it is a text.
fn id(fields: &Fields<'_, OtherItem>) -> Option<String> {
    let id = match fields.call_id() {
        Ok(None) => fields.id(),
        given => given,
    };
    id.ok()?.map(str::to_owned)
}

/// The text of a `reasoning` item, if it has any.
fn thoughts(fields: &Fields<'_, OtherItem>) -> Result<Option<String>, ApiError> {
    let list = |content| Array::new(ITEMS).read(fields.path("content"), content);
    let parts = fields.content()?.map(list).transpose()?.unwrap_or_default();
    let words: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
    Ok((!words.is_empty()).then(|| words.join("\n")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::Entries;

    fn parse(items: &Value) -> Result<Conversation, ApiError> {
        let mut said = Conversation::default();
        for item in Entries::of("input".to_owned(), items.as_array().unwrap()).iter() {
            said.add(&item?)?;
        }
        Ok(said)
    }

    #[test]
    fn items_become_turns() {
        let said = parse(&json!([
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
    fn items_of_other_tools_are_calls_and_answers() {
        const IMAGE: &str = "[There is an image here, which this model cannot see.]";
        const FILE: &str = "[There is a file here, which this model cannot read.]";
        let (ls, gone) = (json!({ "commands": ["ls"] }), json!({ "type": "delete_file", "path": "a" }));
        for (items, name, arguments, answer) in [
            (
                json!([
                    { "type": "function_call", "call_id": "1", "namespace": "crm", "name": "f",
                        "arguments": "{\"a\":1}" },
                    { "type": "function_call_output", "call_id": "1",
                        "output": [{ "type": "input_text", "text": "b" },
                            { "type": "input_image", "image_url": "x" }, { "type": "input_file" }] }]),
                "crm__f",
                json!({ "a": 1 }),
                format!("b\n{IMAGE}\n{FILE}"),
            ),
            (
                json!([
                    { "type": "custom_tool_call", "call_id": "1", "name": "patch", "input": "a\n+b" },
                    { "type": "custom_tool_call_output", "call_id": "1", "output": "done" }]),
                "patch",
                json!({ "input": "a\n+b" }),
                "done".into(),
            ),
            (
                json!([
                    { "type": "local_shell_call", "id": "2", "call_id": "1", "action": ls },
                    { "type": "local_shell_call_output", "id": "1", "output": "{\"output\":\"a\"}" }]),
                "local_shell",
                json!({ "action": ls }),
                "{\"output\":\"a\"}".into(),
            ),
            (
                json!([
                    { "type": "shell_call", "call_id": "1", "action": ls },
                    { "type": "shell_call_output", "call_id": "1", "output": [
                        { "stdout": "a" }, { "stdout": "b" }] }]),
                "shell",
                json!({ "action": ls }),
                "{\"stdout\":\"a\"}\n{\"stdout\":\"b\"}".into(),
            ),
            (
                json!([
                    { "type": "apply_patch_call", "call_id": "1", "status": "completed", "operation": gone },
                    { "type": "apply_patch_call_output", "call_id": "1", "status": "failed" }]),
                "apply_patch",
                json!({ "operation": gone }),
                "failed".into(),
            ),
            (
                json!([
                    { "type": "computer_call", "call_id": "1", "action": { "type": "screenshot" } },
                    { "type": "computer_call_output", "call_id": "1",
                        "output": { "type": "computer_screenshot", "image_url": "x" } }]),
                "computer",
                json!({ "action": { "type": "screenshot" } }),
                IMAGE.into(),
            ),
            (
                json!([
                    { "type": "program", "id": "2", "call_id": "1", "code": "1 + 1", "fingerprint": "x" },
                    { "type": "program_output", "id": "3", "call_id": "1", "result": "2" }]),
                "program",
                json!({ "code": "1 + 1" }),
                "2".into(),
            ),
            (
                json!([
                    { "type": "mcp_call", "id": "1", "server_label": "toy", "name": "f",
                        "arguments": "{\"a\":1}", "output": "b" }]),
                "toy__f",
                json!({ "a": 1 }),
                "b".into(),
            ),
            (
                json!([
                    { "type": "code_interpreter_call", "id": "1", "code": "print(1)", "outputs": [
                        { "type": "logs", "logs": "1" }, { "type": "image", "url": "x" }] }]),
                "code_interpreter",
                json!({ "code": "print(1)" }),
                format!("1\n{IMAGE}"),
            ),
            (
                json!([
                    { "type": "file_search_call", "id": "1", "queries": ["a"],
                        "results": [{ "filename": "f", "text": "b" }] }]),
                "file_search",
                json!({ "queries": ["a"] }),
                "b".into(),
            ),
        ] {
            let Conversation { messages, left_out, .. } = parse(&items).unwrap();
            assert!(left_out.is_empty() && messages.len() == 2, "{items}");
            let (call, told) = (&messages[0].tool_calls[0], &messages[1]);
            assert_eq!((call.id.as_deref(), call.name.as_str()), (Some("1"), name));
            assert_eq!(serde_json::from_str::<Value>(&call.arguments).unwrap(), arguments);
            assert_eq!((told.role.as_str(), told.content.as_str()), ("tool", answer.as_str()));
            assert_eq!((told.tool_call_id.as_deref(), told.name.as_deref()), (Some("1"), Some(name)));
        }
    }

    #[test]
    fn other_models_of_the_client_speak_as_the_user() {
        let content = json!([{ "type": "input_text", "text": "a" }, { "type": "encrypted_content" }]);
        let said = parse(&json!([{ "type": "agent_message", "author": "/b", "content": content }])).unwrap();
        let message = &said.messages[0];
        let shown = "a\n[There is an encrypted text here, which this model cannot read.]";
        assert_eq!((message.role.as_str(), message.content.as_str()), ("user", shown));
    }

    #[test]
    fn items_that_say_nothing_here_are_left_out() {
        let bare = KINDS.iter().filter(|(_, shown)| matches!(shown, Shown::LeftOut | Shown::Done(..)));
        let bare: Vec<&str> = bare.map(|(kind, _)| *kind).chain(["mcp_call"]).collect();
        let items: Vec<Value> = bare.iter().map(|kind| json!({ "type": kind, "id": "x" })).collect();
        let Conversation { messages, left_out, .. } = parse(&items.into()).unwrap();
        assert!(messages.is_empty());
        assert_eq!(parse(&json!([{ "id": "msg_1" }])).unwrap().left_out, ["item_reference"]);
        assert_eq!(left_out, bare);
        assert!(bare.contains(&"item_reference") && bare.contains(&"web_search_call"), "{bare:?}");
        assert!(KINDS.is_sorted_by(|one, other| one.0 < other.0));
    }

    #[test]
    fn items_that_do_not_fit_are_named() {
        for (item, param) in [
            (json!({ "type": "other_call", "id": "x" }), "input[0].type"),
            (json!({ "type": "custom_tool_call", "call_id": "1", "name": "f" }), "input[0].input"),
            (json!({ "type": "function_call", "name": "f" }), "input[0].call_id"),
            (
                json!({ "role": "user", "content": [{ "type": "input_image", "file_id": "x" }] }),
                "input[0].content[0].image_url",
            ),
            (
                json!({ "role": "system", "content": [{ "type": "input_image", "image_url": "data:" }] }),
                "input[0].content[0].type",
            ),
            (json!(3), "input[0]"),
        ] {
            assert_eq!(parse(&json!([item])).unwrap_err().param.as_deref(), Some(param), "{item}");
        }
    }
}
