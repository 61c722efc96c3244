//! Messages of a conversation, as clients write them: roles, and content that is a text, nothing, or a list
//! of parts of text.

use serde_json::{Map, Value, json};

use super::constraints::{AnswerForm, Constraints};
use super::error::ApiError;
use super::fields::{Fields, missing, request};
use super::kinds::{Any, Bool, Dict, Entries, List, Object, Only, Text, TextOr, Word};
use super::model::Served;
use super::tool_config::ChatTools;
use sterna_tokenizer::chat::{self, Extras, Prompt, ToolCall};
use sterna_tools::Tool;

/// Most messages of a conversation.
pub const MESSAGES: usize = 4096;
/// Most calls of a message.
const CALLS: usize = 128;
/// Roles, and those that templates know them as.
const ROLES: &[(&str, &str)] = &[
    ("system", "system"),
    ("developer", "system"),
    ("user", "user"),
    ("assistant", "assistant"),
    ("tool", "tool"),
    ("function", "tool"),
];

request! {
    /// A message of a conversation.
    pub struct Message {
        role: Word<&'static str>(ROLES) or missing("a role"),
        content: TextOr<ContentPart>(0),
        reasoning_content | reasoning | thinking: Text,
        tool_calls: List<Call>(CALLS),
        tool_call_id: Text,
        name | tool_name: Text,
        function_call: Only(|| json!([])),
    }
}

request! {
    /// A part of a content. Only text is read.
    pub enum ContentPart {
        TextPart,
        RefusalPart,
    }
}

request! {
    /// A part with a text.
    pub struct TextPart of { "enum": ["text", "input_text", "output_text", null] } {
        text: Text or missing("a text"),
    }
}

request! {
    /// A part with the assistant's refusal.
    pub struct RefusalPart of { "const": "refusal" } {
        refusal: Text or missing("a text"),
    }
}

request! {
    /// A call that an assistant made.
    pub struct Call {
        id: Text,
        function: Object<CalledFunction> or missing("an object with a name and arguments"),
    }
}

request! {
    /// A function that was called.
    pub struct CalledFunction {
        name: Text or missing("a name"),
        /// JSON in a text, or an object.
        arguments: Any as { "type": ["string", "object"] },
    }
}

request! {
    /// The way in which a conversation goes on.
    pub struct Continuation {
        /// The last message is the assistant's, and the answer goes on with it.
        continue_final_message: Bool,
        add_generation_prompt: Bool,
    }
}

request! {
    /// What the chat template is told.
    pub struct TemplateFields {
        /// Not supported: a template is chosen when the server is started.
        chat_template: Any as { "enum": [] },
        /// Variables of the template.
        chat_template_kwargs: Dict,
    }
}

request! {
    /// Fields of OpenAI's chat beside its messages.
    pub struct ChatFields {
        ..Continuation,
        ..TemplateFields,
        ..ChatTools,
        ..AnswerForm,
        /// `none` is no thoughts.
        reasoning_effort: Text,
    }
}

/// A conversation for the chat template, and how it is to go on.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatPrompt {
    /// Messages so far.
    pub messages: Vec<chat::Message>,
    /// The assistant speaks next.
    pub add_generation_prompt: bool,
    /// Beginning of the assistant's answer, to go on with.
    pub assistant_prefix: Option<String>,
    /// Tools and variables of the template beside the messages.
    pub extras: Extras,
}

impl ChatPrompt {
    /// The conversation as the model reads it.
    ///
    /// # Errors
    /// 400 if the template refuses it, or makes nothing of it.
    pub fn prompt(&self, served: &Served) -> Result<Prompt, ApiError> {
        let Self { messages, add_generation_prompt, assistant_prefix, extras } = self;
        let (template, tokenizer) = (&served.template, served.tokenizer());
        let opens = *add_generation_prompt;
        let prefix = assistant_prefix.as_deref();
        let prompt = served.syntax.prompt(template, tokenizer, messages, extras, opens, prefix);
        match prompt {
            Ok(prompt) if prompt.ids.is_empty() => {
                Err(ApiError::bad("the chat template renders these messages to no tokens"))
            }
            Ok(prompt) => Ok(prompt),
            Err(err) => Err(ApiError::bad(err.to_string())),
        }
    }
}

impl ChatPrompt {
    /// The same where an answer has that form: the template shows the tools, in its words or in ours.
    #[must_use]
    pub fn offering(mut self, constraints: &Constraints, served: &Served) -> Self {
        if let Some(tools) = constraints.offered() {
            match served.syntax.shows_tools {
                false => self.messages = served.syntax.calls.messages(&self.messages, tools),
                true => self.extras.tools = tools.iter().map(Tool::to_json).collect(),
            }
        }
        if constraints.leaves_no_thoughts() {
            self.extras.variables.entry("enable_thinking").or_insert(Value::Bool(false));
        }
        self
    }
}

/// The conversation of a request with `messages` and `tools`.
///
/// # Errors
/// 400 that names the field.
pub fn chat_prompt_with_tools(
    messages: &Entries<'_, Message>,
    fields: &Fields<'_, ChatFields>,
    served: &Served,
) -> Result<ChatPrompt, ApiError> {
    let chat = chat_prompt(messages, fields)?;
    Ok(chat.offering(&Constraints::of_chat(&fields.part(), &fields.part(), served)?, served))
}

/// `messages`, if there is at least one.
///
/// # Errors
/// 400 if there is none.
pub fn at_least_one<'m, 'v, R>(messages: &'m Entries<'v, R>) -> Result<&'m Entries<'v, R>, ApiError> {
    match messages.is_empty() {
        true => Err(ApiError::field("messages", "at least one message", &Value::Array(vec![]))),
        false => Ok(messages),
    }
}

/// The conversation of a request with `messages`.
///
/// # Errors
/// 400 that names the field.
pub fn chat_prompt(
    messages: &Entries<'_, Message>,
    fields: &Fields<'_, ChatFields>,
) -> Result<ChatPrompt, ApiError> {
    let messages = at_least_one(messages)?.iter().map(|message| self::message(&message?));
    let messages = messages.collect::<Result<_, _>>()?;
    let thinking = Thinking::by_effort(fields.reasoning_effort()?);
    going_on(&fields.part(), messages, extras(&fields.part(), thinking)?)
}

/// The conversation of these messages, of which the last may be one of the assistant's to go on with.
///
/// # Errors
/// 400 that names the field.
pub fn going_on(
    fields: &Fields<'_, Continuation>,
    mut messages: Vec<chat::Message>,
    extras: Extras,
) -> Result<ChatPrompt, ApiError> {
    let goes_on = fields.continue_final_message()?;
    let opens = fields.add_generation_prompt()?;
    let is_assistants = |at: usize| messages.get(at).is_some_and(|last| last.role == "assistant");
    let last = messages.len().saturating_sub(1);
    if goes_on == Some(true) && opens == Some(true) {
        return Err(ApiError {
            param: Some("continue_final_message".into()),
            ..ApiError::bad("`continue_final_message` and `add_generation_prompt` exclude each other")
        });
    }
    if goes_on == Some(true) && !is_assistants(last) {
        return Err(ApiError {
            param: Some("continue_final_message".into()),
            ..ApiError::bad("`continue_final_message`: the last message is not the assistant's")
        });
    }
    // A message that calls has ended with its calls.
    let has_called = messages.last().is_some_and(|last| !last.tool_calls.is_empty());
    if has_called && goes_on == Some(true) {
        return Err(ApiError {
            param: Some("continue_final_message".into()),
            ..ApiError::bad("`continue_final_message`: the last message ends with calls of tools")
        });
    }
    if !is_assistants(last) || has_called || goes_on == Some(false) {
        return Ok(ChatPrompt {
            messages,
            add_generation_prompt: opens.unwrap_or(true),
            assistant_prefix: None,
            extras,
        });
    }
    if last > 0 && is_assistants(last - 1) {
        let message = "`messages`: two assistant messages at the end; want at most one, to continue";
        return Err(ApiError { param: Some("messages".into()), ..ApiError::bad(message) });
    }
    if extras.variables.get("enable_thinking") == Some(&Value::Bool(true)) {
        let message = "`messages`: continuing an assistant message excludes thinking: switch thinking off, \
                       or leave the message out";
        return Err(ApiError { param: Some("messages".into()), ..ApiError::bad(message) });
    }
    let assistant_prefix = messages.pop().map(|last| last.content);
    Ok(ChatPrompt { messages, add_generation_prompt: true, assistant_prefix, extras })
}

/// One message.
///
/// # Errors
/// 400 that names the field.
pub fn message(fields: &Fields<'_, Message>) -> Result<chat::Message, ApiError> {
    let role = fields.role()?;
    fields.function_call()?;
    let tool_calls = fields.tool_calls()?.unwrap_or_default();
    let given = fields.content()?;
    if given.is_none() && role != "assistant" {
        return Err(ApiError::missing(&fields.path("content"), "a text or a list of parts"));
    }
    let read = if role == "tool" { result } else { content };
    Ok(chat::Message {
        role: role.to_owned(),
        content: read(&fields.path("content"), given)?,
        reasoning_content: fields.reasoning_content()?.map(str::to_owned),
        tool_calls: tool_calls.iter().map(|call| self::call(&call?)).collect::<Result<_, _>>()?,
        tool_call_id: fields.tool_call_id()?.map(str::to_owned),
        name: fields.name()?.map(str::to_owned),
    })
}

fn call(fields: &Fields<'_, Call>) -> Result<ToolCall, ApiError> {
    let function = fields.function()?;
    let name = function.name()?;
    let arguments = match function.arguments()? {
        None => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(other) => {
            return Err(ApiError::field(function.path("arguments"), "JSON in a text", other));
        }
    };
    Ok(ToolCall { id: fields.id()?.map(str::to_owned), name: name.to_owned(), arguments })
}

/// Request for thoughts before the answer, as templates are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thinking {
    /// `None` leaves it to the template.
    pub on: Option<bool>,
    /// Amount, in a word.
    pub effort: Option<String>,
}

impl Thinking {
    /// Thoughts by an effort; `none` is not at all.
    pub fn by_effort(effort: Option<&str>) -> Self {
        match effort {
            Some("none") => Self { on: Some(false), effort: None },
            other => Self { on: None, effort: other.map(str::to_owned) },
        }
    }
}

/// Variables of the template that a request sets. Its own variables go before what else it says.
///
/// # Errors
/// 400 that names the field.
pub fn extras(fields: &Fields<'_, TemplateFields>, thinking: Thinking) -> Result<Extras, ApiError> {
    if fields.chat_template()?.is_some() {
        let message = "`chat_template`: a template is chosen when the server is started";
        return Err(ApiError { param: Some("chat_template".into()), ..ApiError::bad(message) });
    }
    let mut variables = Map::new();
    if let Some(effort) = thinking.effort {
        variables.insert("reasoning_effort".into(), effort.into());
    }
    if let Some(on) = thinking.on {
        variables.insert("enable_thinking".into(), on.into());
    }
    variables.extend(fields.chat_template_kwargs()?.cloned().unwrap_or_default());
    Ok(Extras { tools: Vec::new(), variables })
}

/// Text in place of an image that a tool answered with: no model here sees.
const UNSEEN: &str = "[There is an image here, which this model cannot see.]";
/// The same of a file.
const UNOPENED: &str = "[There is a file here, which this model cannot read.]";
/// The same of what only its author's servers can decrypt.
const ENCRYPTED: &str = "[There is an encrypted text here, which this model cannot read.]";
/// Types of parts of what tools answer that are no text, and what the model reads in their place.
const UNREAD: &[(&str, &str)] = &[
    ("computer_screenshot", UNSEEN),
    ("encrypted_content", ENCRYPTED),
    ("file", UNOPENED),
    ("image", UNSEEN),
    ("image_url", UNSEEN),
    ("input_file", UNOPENED),
    ("input_image", UNSEEN),
];

/// The sentence for an image at `name` of a request, which the log has too.
pub fn unseen(name: &str) -> &'static str {
    tracing::warn!(field = name, "a tool's result has an image: the model, which cannot see, is told so");
    UNSEEN
}

/// The sentence for a part at `name` of a request, which the log has too; `None` for what may be text.
pub fn unread(name: &str, part: &Value) -> Option<&'static str> {
    let kind = part.get("type")?;
    let (_, sentence) = UNREAD.iter().find(|(known, _)| kind == known)?;
    if *sentence == UNSEEN {
        return Some(unseen(name));
    }
    tracing::warn!(field = name, "a tool's result has a part of type {kind}: the model is told so");
    Some(sentence)
}

/// The text of what a tool answered, as [`content`]. A sentence stands for an image or a file: the client
/// that calls tools cannot know what they answer with, and the conversation would end there.
///
/// # Errors
/// 400 for parts that are none of these.
pub fn result(name: &str, value: Option<&Value>) -> Result<String, ApiError> {
    let Some(Value::Array(parts)) = value else { return content(name, value) };
    let seen = |part: &Value| match unread(name, part) {
        Some(sentence) => json!({ "text": sentence }),
        None => part.clone(),
    };
    content(name, Some(&parts.iter().map(seen).collect()))
}

/// The text of a content: a text, nothing, or parts, a line each.
///
/// # Errors
/// 400 for parts that are not text.
pub fn content(name: &str, value: Option<&Value>) -> Result<String, ApiError> {
    let parts = match value {
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(ApiError::field(name, "a text or a list of parts", other)),
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        let fields = Fields::<ContentPart>::inside(format!("{name}[{at}]"), part)?;
        texts.push(match fields.r#type()?.unwrap_or("text") {
            "text" | "input_text" | "output_text" => fields.part::<TextPart>().text()?,
            "refusal" => fields.part::<RefusalPart>().refusal()?,
            other => {
                let want = "`text`: this model reads nothing else";
                return Err(ApiError::field(fields.path("type"), want, &other.into()));
            }
        });
    }
    Ok(texts.join("\n"))
}
