//! Requests of Anthropic's clients: messages of blocks, tools, thinking and output formats.

use std::collections::HashMap;

use serde_json::Value;

use crate::constraints::{AnswerForm, Constraints, schema_at};
use crate::error::ApiError;
use crate::fields::{Fields, Kind, missing, request};
use crate::images::{self, ImageFile, Images};
use crate::kinds::{Any, Bool, Dict, Entries, Int, List, MAX_INT, Object, Text, TextOr, Word};
use crate::messages::{self, ChatPrompt, ContentPart, Continuation, MESSAGES, TemplateFields, Thinking};
use crate::model::Served;
use crate::results;
use crate::tool_config::{MessagesTools, ToolConfig};
use sterna_grammar::Source;
use sterna_tokenizer::chat::{Message, ToolCall};

/// Maximum blocks of a message.
const BLOCKS: usize = 1024;

request! {
    /// A conversation in Anthropic's format.
    pub struct MessagesInput {
        ..MessagesTools,
        ..Continuation,
        ..TemplateFields,
        ..AnswerForm,
        messages: List<Turn>(MESSAGES) as { "minItems": 1 } or missing("a list of messages"),
        system: TextOr<ContentPart>(0),
        thinking: Object<ThinkingConfig>,
        output_config: Object<OutputConfig>,
        /// Older name of the format in `output_config`.
        output_format: Object<OutputFormat>,
    }
}

request! {
    /// A message in Anthropic's format.
    pub struct Turn {
        role: Word<&'static str>(&[
            ("user", "user"), ("assistant", "assistant"), ("system", "system")
        ]) or missing("user or assistant"),
        /// Null is an empty text.
        content: TextOr<TurnBlock>(0),
    }
}

request! {
    /// A block of a message in Anthropic's format.
    pub enum TurnBlock {
        TextBlock,
        ImageBlock,
        DocumentBlock,
        SearchBlock,
        ThinkingBlock,
        RedactedBlock,
        CallBlock,
        ResultBlock,
        ServerResultBlock,
    }
}

request! {
    /// A text.
    pub struct TextBlock of { "enum": ["text", null] } {
        text: Text or missing("a text"),
    }
}

request! {
    /// An image from the user, if the server has the model's mmproj file.
    pub struct ImageBlock of { "const": "image" } {
        source: Object<ImageSource> or missing("the image in base64"),
    }
}

request! {
    /// Source of an image's file.
    pub enum ImageSource {
        Base64Source,
        UrlSource,
    }
}

request! {
    /// A file in base64.
    pub struct Base64Source of { "const": "base64" } {
        data: Text or missing("the file in base64"),
        /// Ignored: the file tells.
        media_type: Text,
    }
}

request! {
    /// A file at a host that the server allows.
    pub struct UrlSource of { "const": "url" } {
        url: Text or missing("a URL"),
    }
}

request! {
    /// A document from the user.
    pub struct DocumentBlock of { "const": "document" } {
        source: Object<DocumentSource> or missing("the text of the document"),
        title: Text,
        /// Context about the document.
        context: Text,
    }
}

request! {
    /// Source of a document's text.
    pub enum DocumentSource {
        TextSource,
        ContentSource,
    }
}

request! {
    /// A text.
    pub struct TextSource of { "const": "text" } {
        data: Text or missing("a text"),
    }
}

request! {
    /// Parts.
    pub struct ContentSource of { "const": "content" } {
        content: TextOr<ContentPart>(0),
    }
}

request! {
    /// A search result from the user.
    pub struct SearchBlock of { "const": "search_result" } {
        ..SearchFields,
    }
}

request! {
    /// Fields of a search result; all of them become text.
    pub enum SearchFields = ["title", "source", "content"];
}

request! {
    /// The assistant's thinking.
    pub struct ThinkingBlock of { "const": "thinking" } {
        thinking: Text or missing("a text"),
    }
}

request! {
    /// Thinking that only Anthropic's servers can read.
    pub struct RedactedBlock of { "const": "redacted_thinking" } {}
}

request! {
    /// A tool call of the assistant; the API's servers run some of the tools.
    pub struct CallBlock of { "enum": ["tool_use", "server_tool_use", "mcp_tool_use"] } {
        id: Text or missing("a text"),
        name: Text or missing("a text"),
        input: Dict,
    }
}

request! {
    /// The result of a tool.
    pub struct ResultBlock of { "const": "tool_result" } {
        tool_use_id: Text or missing("a text"),
        /// A text, or parts. The model is only told that there are files, and images if it cannot see.
        content: Any,
        is_error: Bool,
    }
}

request! {
    /// The result of a tool that the API's servers have run.
    pub struct ServerResultBlock of { "pattern": "^.+_tool_result$" } {
        ..ResultBlock,
    }
}

request! {
    /// Turns thinking on or off. Its token budget is accepted but not enforced.
    pub struct ThinkingConfig {
        r#type: Word<bool>(THINKING) or no_thinking,
        budget_tokens: Int(1, MAX_INT),
    }
}

request! {
    /// Effort and output format.
    pub struct OutputConfig {
        effort: Text,
        format: Object<OutputFormat>,
    }
}

request! {
    /// A JSON schema for the answer.
    pub struct OutputFormat {
        r#type: Text as { "const": "json_schema" } or no_format,
        schema: Any as { "type": ["object", "boolean", "string"] } or missing("a JSON schema"),
    }
}

/// Values of [`ThinkingConfig`]'s `type`, with true for those that turn thinking on.
const THINKING: &[(&str, bool)] = &[("enabled", true), ("adaptive", true), ("disabled", false)];

fn no_thinking(path: String) -> ApiError {
    ApiError::field(path, &Word::new(THINKING).want(), &Value::Null)
}

fn no_format(path: String) -> ApiError {
    ApiError::field(path, "`json_schema`", &Value::Null)
}

/// Reads the conversation and the constraints of the answer.
pub fn read(
    fields: &Fields<'_, MessagesInput>,
    served: &Served,
) -> Result<(ChatPrompt, Constraints), ApiError> {
    let (format, tool_config) = (format(fields)?, ToolConfig::messages(&fields.part())?);
    let constraints = Constraints::of_conversation(&fields.part(), format, tool_config, served)?;
    let list = fields.messages()?;
    let list = messages::at_least_one(&list)?;
    let mut said = Conversation { images: Images::of(served), ..Conversation::default() };
    let system = messages::content("system", fields.system()?)?;
    let system = without_billing(&system);
    if !system.is_empty() {
        said.messages.push(Message::new("system", system));
    }
    for message in list.iter() {
        said.add(&message?)?;
    }
    let extras = messages::extras(&fields.part(), thinking(fields)?)?;
    let chat = messages::going_on(&fields.part(), said.messages, extras)?;
    Ok((ChatPrompt { images: said.images.list, ..chat }, constraints))
}

/// Thinking is off unless the request asks for it.
fn thinking(fields: &Fields<'_, MessagesInput>) -> Result<Thinking, ApiError> {
    let on = match fields.thinking()? {
        None => false,
        Some(thinking) => {
            thinking.budget_tokens()?;
            thinking.r#type()?
        }
    };
    let config = fields.output_config()?.unwrap_or_default();
    Ok(Thinking { on: Some(on), effort: config.effort()?.map(str::to_owned) })
}

/// The format of the answer: from `output_config`, or from the older field.
fn format(fields: &Fields<'_, MessagesInput>) -> Result<Option<(String, Source)>, ApiError> {
    let config = fields.output_config()?.unwrap_or_default();
    let format = match config.format()? {
        Some(format) => Some(format),
        None => fields.output_format()?,
    };
    let Some(format) = format else { return Ok(None) };
    let kind = format.r#type()?;
    if kind != "json_schema" {
        return Err(ApiError::field(format.path("type"), "`json_schema`", &kind.into()));
    }
    let name = format.path("schema");
    Ok(Some((name.clone(), schema_at(name, format.schema()?, true)?)))
}

/// Messages as templates expect them: tool results are separate messages.
#[derive(Debug, Default)]
struct Conversation {
    messages: Vec<Message>,
    /// Images in the messages.
    images: Images,
    /// Names of the called tools, by call id.
    names: HashMap<String, String>,
}

impl Conversation {
    fn add(&mut self, fields: &Fields<'_, Turn>) -> Result<(), ApiError> {
        let role = fields.role()?;
        match fields.content()? {
            None if fields.is_null("content") => self.say(Message::new(role, "")),
            None => return Err(ApiError::missing(&fields.path("content"), "a text or a list of blocks")),
            Some(Value::String(text)) => self.say(Message::new(role, text.as_str())),
            Some(blocks) => self.blocks(role, &List::new(BLOCKS).read(fields.path("content"), blocks)?)?,
        }
        Ok(())
    }

    fn blocks(&mut self, role: &str, blocks: &Entries<'_, TurnBlock>) -> Result<(), ApiError> {
        let (mut said, mut n_answers) = (Said::default(), 0);
        for block in blocks.iter() {
            let block = block?;
            match (block.r#type()?.unwrap_or("text"), role) {
                ("text", _) => said.texts.push(block.part::<TextBlock>().text()?.to_owned()),
                ("image", "user") => {
                    let (path, file) = image(&block.part())?;
                    said.texts.push(said.images.add(path, file).to_owned());
                }
                ("document", "user") => said.texts.push(document(&block.part())?),
                ("search_result", "user") => {
                    let value = Some(block.value());
                    let text = results::text(&block.path("content"), value.as_ref(), &mut said.images);
                    said.texts.push(text);
                }
                ("thinking", "assistant") => {
                    said.thoughts.push(block.part::<ThinkingBlock>().thinking()?.to_owned());
                }
                // Only Anthropic's servers can read it.
                ("redacted_thinking", "assistant") => {}
                ("tool_use" | "server_tool_use" | "mcp_tool_use", "assistant") => {
                    let block = block.part::<CallBlock>();
                    let arguments = block.input()?.cloned().unwrap_or_default();
                    let call = ToolCall {
                        id: Some(block.id()?.to_owned()),
                        name: block.name()?.to_owned(),
                        arguments: Value::Object(arguments).to_string(),
                    };
                    self.names.extend(call.id.clone().map(|id| (id, call.name.clone())));
                    said.calls.push(call);
                }
                ("tool_result", "user") => {
                    n_answers += 1;
                    self.answer(&block.part())?;
                }
                (kind, "assistant") if kind.ends_with("_tool_result") => {
                    n_answers += 1;
                    if said != Said::default() {
                        self.add_said(std::mem::take(&mut said), role);
                    }
                    self.answer(&block.part::<ServerResultBlock>().part())?;
                }
                (other, role) => {
                    let want = match role {
                        "assistant" => "one of text, thinking, tool_use",
                        "user" => {
                            "text, image, document, search_result or tool_result: this model reads nothing \
                             else"
                        }
                        _ => "`text`",
                    };
                    return Err(ApiError::field(block.path("type"), want, &other.into()));
                }
            }
        }
        if n_answers == 0 || said != Said::default() {
            self.add_said(said, role);
        }
        Ok(())
    }

    /// Adds the blocks of a message.
    fn add_said(&mut self, mut said: Said, role: &str) {
        self.images.append(std::mem::take(&mut said.images));
        self.say(said.message(role));
    }

    /// Adds a tool result. Templates have no field for failures, so the text mentions it.
    fn answer(&mut self, block: &Fields<'_, ResultBlock>) -> Result<(), ApiError> {
        let id = block.tool_use_id()?.to_owned();
        let mut content = results::text(&block.path("content"), block.content()?, &mut self.images);
        if block.is_error()?.unwrap_or(false) && !content.starts_with("Error") {
            content.insert_str(0, "Error: ");
        }
        let name = self.names.get(&id).cloned();
        self.messages.push(Message { tool_call_id: Some(id), name, ..Message::new("tool", content) });
        Ok(())
    }

    /// Merges consecutive messages of one role, as templates require.
    fn say(&mut self, message: Message) {
        let last = self.messages.last_mut().filter(|last| last.role == message.role);
        let Some(last) = last.filter(|last| last.role != "system") else {
            return self.messages.push(message);
        };
        if !last.content.is_empty() && !message.content.is_empty() {
            images::separate(&mut last.content, &message.content);
        }
        last.content += &message.content;
        last.tool_calls.extend(message.tool_calls);
        last.reasoning_content = last.reasoning_content.take().or(message.reasoning_content);
    }
}

/// Blocks of one message.
#[derive(Debug, Default, PartialEq)]
struct Said {
    texts: Vec<String>,
    /// Images in the texts.
    images: Images,
    thoughts: Vec<String>,
    calls: Vec<ToolCall>,
}

impl Said {
    fn message(self, role: &str) -> Message {
        Message {
            tool_calls: self.calls,
            reasoning_content: (!self.thoughts.is_empty()).then(|| self.thoughts.join("\n")),
            ..Message::new(role, images::joined(self.texts))
        }
    }
}

/// The image of a block, and its path.
fn image(block: &Fields<'_, ImageBlock>) -> Result<(String, ImageFile), ApiError> {
    let source = block.source()?;
    let file = match source.r#type()? {
        Some("base64") => {
            let source = source.part::<Base64Source>();
            source.media_type()?;
            ImageFile::Base64(source.data()?.to_owned())
        }
        Some("url") => ImageFile::Url(source.part::<UrlSource>().url()?.to_owned()),
        other => {
            let want = "`base64` or `url`: this server stores no files";
            return Err(ApiError::field(source.path("type"), want, &other.into()));
        }
    };
    Ok((block.path("source"), file))
}

/// The text of a document, after its title and context.
fn document(block: &Fields<'_, DocumentBlock>) -> Result<String, ApiError> {
    let source = block.source()?;
    let text = match source.r#type()? {
        Some("text") => source.part::<TextSource>().data()?.to_owned(),
        Some("content") => {
            let source = source.part::<ContentSource>();
            messages::content(&source.path("content"), source.content()?)?
        }
        other => {
            let want = "`text` or `content`: this model reads texts; send the text of the document";
            return Err(ApiError::field(source.path("type"), want, &other.into()));
        }
    };
    let about = [block.title()?, block.context()?].into_iter().flatten();
    Ok(about.filter(|line| !line.is_empty()).chain([text.as_str()]).collect::<Vec<_>>().join("\n"))
}

/// The system prompt without the line that Claude Code puts first. That line is for the vendor's billing, and
/// contains checksums of the conversation and of its first message: with it, no conversation could reuse the
/// KV pages of another one, or those of its own previous turn.
fn without_billing(system: &str) -> &str {
    match system.split_once('\n') {
        _ if !system.starts_with("x-anthropic-billing-header:") => system,
        Some((_, rest)) => rest,
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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

    fn parse(messages: &Value) -> Result<Vec<Message>, ApiError> {
        parse_with(messages, Conversation::default()).map(|said| said.messages)
    }

    fn parse_with(messages: &Value, mut said: Conversation) -> Result<Conversation, ApiError> {
        for message in Entries::of("messages".to_owned(), messages.as_array().unwrap()).iter() {
            said.add(&message?)?;
        }
        Ok(said)
    }

    /// Results of tools come before the other blocks of their message, and so do their images.
    #[test]
    fn images_are_in_the_order_of_their_marks() {
        const IMAGE: &str = sterna_tokenizer::chat::IMAGE;
        let image = |data: &str| {
            let source = json!({ "type": "base64", "media_type": "image/png", "data": data });
            json!({ "type": "image", "source": source })
        };
        let result = json!({ "type": "tool_result", "tool_use_id": "1",
            "content": [{ "type": "text", "text": "x" }, image("b")] });
        let text = json!({ "type": "text", "text": "what?" });
        let turns = json!([
            { "role": "user", "content": [text, image("a")] },
            { "role": "user", "content": [image("c"), result, text] },
        ]);
        let sees = Conversation { images: Images::in_results(), ..Conversation::default() };
        let Conversation { messages, images, .. } = parse_with(&turns, sees).unwrap();
        let shown: Vec<(&str, String)> =
            messages.iter().map(|said| (said.role.as_str(), said.content.replace(IMAGE, "*"))).collect();
        assert_eq!(
            shown,
            [("user", "what?*".to_owned()), ("tool", "x*".to_owned()), ("user", "*what?".to_owned())]
        );
        let list: Vec<(&str, ImageFile)> =
            images.list.iter().map(|image| (image.path.as_str(), image.file.clone())).collect();
        let file = |data: &str| ImageFile::Base64(data.to_owned());
        assert_eq!(
            list,
            [
                ("messages[0].content[1].source", file("a")),
                ("messages[1].content[1].content[1].source", file("b")),
                ("messages[1].content[0].source", file("c")),
            ]
        );
    }

    #[test]
    fn blocks_become_turns() {
        let messages = parse(&json!([
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
        let said = parse(&json!([{ "role": "user", "content": [
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
    fn blocks_of_tools_of_the_api_become_calls_and_results() {
        let said = parse(&json!([
            { "role": "user", "content": [{ "type": "search_result", "source": "s", "title": "t",
                "content": [{ "type": "text", "text": "a" }] }, { "type": "text", "text": "b" }] },
            { "role": "assistant", "content": [
                { "type": "text", "text": "c" },
                { "type": "server_tool_use", "id": "1", "name": "web_search", "input": { "query": "d" } },
                { "type": "web_search_tool_result", "tool_use_id": "1", "content": [
                    { "type": "web_search_result", "title": "e", "url": "f", "encrypted_content": "x" }] },
                { "type": "text", "text": "g" }] },
        ]));
        let said = said.unwrap();
        let shown: Vec<(&str, &str)> =
            said.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect();
        assert_eq!(shown, [("user", "t\ns\na\nb"), ("assistant", "c"), ("tool", "e\nf"), ("assistant", "g")]);
        assert_eq!((said[1].tool_calls.len(), said[2].name.as_deref()), (1, Some("web_search")));
    }

    #[test]
    fn blocks_that_do_not_fit_are_named() {
        let image = json!({ "type": "image", "source": { "type": "file", "file_id": "x" } });
        let cases = [
            (json!([{ "role": "king", "content": "a" }]), "messages[0].role"),
            (json!([{ "role": "user" }]), "messages[0].content"),
            (json!([{ "role": "user", "content": 3 }]), "messages[0].content"),
            (json!([{ "role": "user", "content": [image] }]), "messages[0].content[0].source.type"),
            (json!([{ "role": "assistant", "content": [image] }]), "messages[0].content[0].type"),
            (
                json!([{ "role": "assistant", "content": [{ "type": "tool_result", "tool_use_id": "1" }] }]),
                "messages[0].content[0].type",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "tool_result" }] }]),
                "messages[0].content[0].tool_use_id",
            ),
            (
                json!([{ "role": "user", "content": [{ "type": "document",
                    "source": { "type": "base64", "media_type": "application/pdf", "data": "" } }] }]),
                "messages[0].content[0].source.type",
            ),
            (
                json!([{ "role": "assistant", "content": [
                { "type": "tool_use", "id": "1", "name": "f", "input": "x" }] }]),
                "messages[0].content[0].input",
            ),
        ];
        for (messages, param) in cases {
            assert_eq!(parse(&messages).unwrap_err().param.as_deref(), Some(param), "{messages}");
        }
    }
}
