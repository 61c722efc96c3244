//! Messages of a conversation in requests: a role, and content that is a text, null, or a list of text parts.

use serde_json::{Map, Value, json};

use super::constraints::{AnswerForm, Constraints};
use super::error::ApiError;
use super::fields::{Fields, missing, request};
use super::images::{self, GivenImage, ImageFile, Images};
use super::kinds::{Any, Bool, Dict, Entries, List, Object, Only, Text, TextOr, Word};
use super::model::Served;
use super::results;
use super::tool_config::ChatTools;
use sterna_tokenizer::chat::{self, Extras, Prompt, ToolCall};
use sterna_tools::Tool;

/// Maximum messages of a conversation.
pub const MESSAGES: usize = 4096;
/// Maximum calls of a message.
const CALLS: usize = 128;
/// Roles in requests, and the roles they have in templates.
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
        /// Null is an empty text. In a tool's result, other values and parts become text.
        content: TextOr<ContentPart>(0),
        reasoning_content | reasoning | thinking: Text,
        tool_calls: List<Call>(CALLS),
        tool_call_id: Text,
        name | tool_name: Text,
        function_call: Only(|| json!([])),
    }
}

request! {
    /// A part of a message's content.
    pub enum ContentPart {
        TextPart,
        RefusalPart,
        ImagePart,
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
    /// A part with an image, if the server has the model's mmproj file.
    pub struct ImagePart of { "enum": ["image_url", "input_image"] } {
        /// A URL, or an object with one as its `url`: a data URL in base64, or that of a file at a host that
        /// the server allows.
        image_url: Any as { "type": ["string", "object"] },
    }
}

request! {
    /// A call that the assistant made.
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
    /// Options for continuing a conversation.
    pub struct Continuation {
        /// The last message is the assistant's, and the answer continues it.
        continue_final_message: Bool,
        add_generation_prompt: Bool,
    }
}

request! {
    /// Options of the chat template.
    pub struct TemplateFields {
        /// Not supported: a template is chosen when the server is started.
        chat_template: Any as { "enum": [] },
        /// Variables of the template.
        chat_template_kwargs: Dict,
    }
}

request! {
    /// Fields of OpenAI's chat other than its messages.
    pub struct ChatFields {
        ..Continuation,
        ..TemplateFields,
        ..ChatTools,
        ..AnswerForm,
        /// `none` turns thinking off.
        reasoning_effort: Text,
    }
}

/// A conversation for the chat template, and how to continue it.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatPrompt {
    /// Messages so far.
    pub messages: Vec<chat::Message>,
    /// True if the assistant speaks next.
    pub add_generation_prompt: bool,
    /// Start of the assistant's answer, to be continued.
    pub assistant_prefix: Option<String>,
    /// Tools and other variables of the template.
    pub extras: Extras,
    /// Images at the [marks](chat::IMAGE) in the messages.
    pub images: Vec<GivenImage>,
}

impl ChatPrompt {
    /// Refuses messages of more bytes than can be `most` tokens.
    ///
    /// # Errors
    /// 400 for such messages.
    pub fn check_bytes(&self, served: &Served, most: usize) -> Result<(), ApiError> {
        let n_bytes = self.messages.iter().map(|message| message.content.len()).sum();
        match served.exceeds(n_bytes, most) {
            Some(n_tokens) => Err(ApiError::too_long(n_tokens, served.n_ctx())),
            None => Ok(()),
        }
    }

    /// Renders the conversation with the chat template.
    ///
    /// # Errors
    /// 400 if the template refuses it, or renders it to no tokens.
    pub fn prompt(&self, served: &Served) -> Result<Prompt, ApiError> {
        let Self { messages, add_generation_prompt, assistant_prefix, extras, images } = self;
        let mut extras = extras.clone();
        extras.around_images = images.first().map(|first| images::check(served, first)).transpose()?;
        let (template, tokenizer) = (&served.template, served.tokenizer());
        self.check_bytes(served, served.most_text())?;
        let opens = *add_generation_prompt;
        let prefix = assistant_prefix.as_deref();
        let prompt = served.syntax.prompt(template, tokenizer, messages, &extras, opens, prefix);
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
    /// Number of tokens of the conversation with its images.
    ///
    /// # Errors
    /// As [`prompt`](Self::prompt); 400 for an image that cannot be read or decoded.
    pub fn count(&self, served: &Served) -> Result<usize, ApiError> {
        images::count(served, &self.prompt(served)?, &self.images)
    }

    /// Adds the tools of `constraints`: to the template if it supports tools, otherwise as messages.
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
    let chat = chat_prompt(messages, fields, served)?;
    Ok(chat.offering(&Constraints::of_chat(&fields.part(), &fields.part(), served)?, served))
}

/// Checks that there is at least one message.
///
/// # Errors
/// 400 if there are no messages.
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
    served: &Served,
) -> Result<ChatPrompt, ApiError> {
    let mut images = Images::of(served);
    let messages = at_least_one(messages)?.iter().map(|said| message(&said?, &mut images));
    let messages = messages.collect::<Result<_, _>>()?;
    let thinking = Thinking::by_effort(fields.reasoning_effort()?);
    let chat = going_on(&fields.part(), messages, extras(&fields.part(), thinking)?)?;
    Ok(ChatPrompt { images: images.list, ..chat })
}

/// The conversation of these messages. The last one may be an assistant message to continue.
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
    let cannot_go_on = |message: &str| Err(ApiError::in_field("continue_final_message", message));
    if goes_on == Some(true) && opens == Some(true) {
        return cannot_go_on("`continue_final_message` and `add_generation_prompt` exclude each other");
    }
    if goes_on == Some(true) && !is_assistants(last) {
        return cannot_go_on("`continue_final_message`: the last message is not the assistant's");
    }
    // A message with calls is complete.
    let has_called = messages.last().is_some_and(|last| !last.tool_calls.is_empty());
    if has_called && goes_on == Some(true) {
        return cannot_go_on("`continue_final_message`: the last message ends with tool calls");
    }
    if !is_assistants(last) || has_called || goes_on == Some(false) {
        return Ok(ChatPrompt {
            messages,
            add_generation_prompt: opens.unwrap_or(true),
            assistant_prefix: None,
            extras,
            images: Vec::new(),
        });
    }
    if last > 0 && is_assistants(last - 1) {
        let message = "`messages`: two assistant messages at the end; want at most one, to continue";
        return Err(ApiError::in_field("messages", message));
    }
    if extras.variables.get("enable_thinking") == Some(&Value::Bool(true)) {
        let message = "`messages`: continuing an assistant message excludes thinking: switch thinking off, \
                       or leave the message out";
        return Err(ApiError::in_field("messages", message));
    }
    let assistant_prefix = messages.pop().map(|last| last.content);
    Ok(ChatPrompt { messages, add_generation_prompt: true, assistant_prefix, extras, images: Vec::new() })
}

/// Reads one message, and adds its images to `images`. Those of a system message are refused, because
/// templates and other endpoints move its text.
///
/// # Errors
/// 400 that names the field.
pub fn message(fields: &Fields<'_, Message>, images: &mut Images) -> Result<chat::Message, ApiError> {
    let role = fields.role()?;
    fields.function_call()?;
    let tool_calls = fields.tool_calls()?.unwrap_or_default();
    let given = fields.content()?;
    let path = fields.path("content");
    if given.is_none() && !fields.is_null("content") && !matches!(role, "assistant" | "tool") {
        return Err(ApiError::missing(&path, "a text or a list of parts"));
    }
    Ok(chat::Message {
        role: role.to_owned(),
        content: match role {
            "tool" => results::text(&path, given, images),
            "system" => content(&path, given)?,
            _ => parts(&path, given, Some(images))?,
        },
        reasoning_content: fields.reasoning_content()?.map(str::to_owned),
        tool_calls: tool_calls.iter().map(|call| self::call(&call?)).collect::<Result<_, _>>()?,
        tool_call_id: fields.tool_call_id()?.map(str::to_owned),
        name: fields.name()?.map(str::to_owned),
        more: Vec::new(),
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

/// Request for thinking before the answer, for templates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thinking {
    /// `None` uses the template's default.
    pub on: Option<bool>,
    /// Effort, as a word.
    pub effort: Option<String>,
}

impl Thinking {
    /// Thinking with an effort; `none` turns it off.
    pub fn by_effort(effort: Option<&str>) -> Self {
        match effort {
            Some("none") => Self { on: Some(false), effort: None },
            other => Self { on: None, effort: other.map(str::to_owned) },
        }
    }
}

/// Template variables that a request sets. `chat_template_kwargs` override the other fields.
///
/// # Errors
/// 400 that names the field.
pub fn extras(fields: &Fields<'_, TemplateFields>, thinking: Thinking) -> Result<Extras, ApiError> {
    if fields.chat_template()?.is_some() {
        let message = "`chat_template`: a template is chosen when the server is started";
        return Err(ApiError::in_field("chat_template", message));
    }
    let mut variables = Map::new();
    if let Some(effort) = thinking.effort {
        variables.insert("reasoning_effort".into(), effort.into());
    }
    if let Some(on) = thinking.on {
        variables.insert("enable_thinking".into(), on.into());
    }
    variables.extend(fields.chat_template_kwargs()?.cloned().unwrap_or_default());
    Ok(Extras { variables, ..Extras::default() })
}

/// The text of a message's content: a text, null, or parts, which are joined by newlines.
///
/// # Errors
/// 400 for parts that are not text.
pub fn content(name: &str, value: Option<&Value>) -> Result<String, ApiError> {
    parts(name, value, None)
}

/// As [`content`]; parts with images are added to `images`, and are marks in the text.
fn parts(name: &str, value: Option<&Value>, mut images: Option<&mut Images>) -> Result<String, ApiError> {
    let parts = match value {
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(ApiError::field(name, "a text or a list of parts", other)),
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (at, part) in parts.iter().enumerate() {
        let fields = Fields::<ContentPart>::inside(format!("{name}[{at}]"), part)?;
        texts.push(match (fields.r#type()?.unwrap_or("text"), &mut images) {
            ("text" | "input_text" | "output_text", _) => fields.part::<TextPart>().text()?,
            ("refusal", _) => fields.part::<RefusalPart>().refusal()?,
            ("image_url" | "input_image", Some(images)) => image(&fields.part(), images)?,
            (other, images) => {
                let want = match images {
                    Some(_) => "`text` or an image",
                    None => "`text`: images are read in messages of the user and results of tools",
                };
                return Err(ApiError::field(fields.path("type"), want, &other.into()));
            }
        });
    }
    Ok(images::joined(texts))
}

/// Adds the image of a part, and returns its mark.
fn image(fields: &Fields<'_, ImagePart>, images: &mut Images) -> Result<&'static str, ApiError> {
    let path = fields.path("image_url");
    let want = "a data URL, or an object with one as its `url`: this server stores no files";
    let Some(value) = fields.image_url()? else { return Err(ApiError::missing(&path, want)) };
    match value.as_str().or_else(|| value.get("url")?.as_str()) {
        Some(url) => Ok(images.add(path, ImageFile::Url(url.to_owned()))),
        None => Err(ApiError::field(path, want, value)),
    }
}
