//! Messages of a conversation, as clients write them: roles, and content that is a text, nothing, or a list
//! of parts of text.

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use super::model::Served;
use crate::tokenizer::chat::{Message, Prompt};

/// Most messages of a conversation.
const MESSAGES: usize = 4096;
/// Roles, and those that templates know them as.
const ROLES: &[(&str, &str)] = &[
    ("system", "system"),
    ("developer", "system"),
    ("user", "user"),
    ("assistant", "assistant"),
    ("tool", "tool"),
    ("function", "tool"),
];

/// A conversation, and how it is to go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Talk {
    /// What has been said.
    pub messages: Vec<Message>,
    /// Whether the assistant speaks next.
    pub add_generation_prompt: bool,
    /// What the assistant has begun to say.
    pub begun: Option<String>,
}

impl Talk {
    /// The conversation as the model reads it.
    ///
    /// # Errors
    /// 400 if the template refuses it, or makes nothing of it.
    pub fn prompt(&self, served: &Served) -> Result<Prompt, ApiError> {
        let Self { messages, add_generation_prompt, begun } = self;
        let (template, tokenizer) = (&served.template, served.tokenizer());
        let prompt = template.prompt(tokenizer, messages, *add_generation_prompt, begun.as_deref());
        match prompt {
            Ok(prompt) if prompt.ids.is_empty() => {
                Err(ApiError::bad("the chat template makes no tokens of these messages"))
            }
            Ok(prompt) => Ok(prompt),
            Err(err) => Err(ApiError::bad(err.to_string())),
        }
    }
}

/// The conversation of a request with `messages`.
///
/// # Errors
/// 400 that names the field.
pub fn talk(fields: &Fields) -> Result<Talk, ApiError> {
    let Some(list) = fields.list("messages", MESSAGES)? else {
        return Err(ApiError::missing(&fields.path("messages"), "a list of messages"));
    };
    if list.is_empty() {
        return Err(ApiError::field(fields.path("messages"), "at least one message", &Value::Array(vec![])));
    }
    let messages = list.iter().enumerate();
    let messages = messages.map(|(at, message)| self::message(format!("messages[{at}]"), message));
    let mut messages: Vec<Message> = messages.collect::<Result<_, _>>()?;
    let goes_on = fields.bool("continue_final_message")?;
    let opens = fields.bool("add_generation_prompt")?;
    let is_assistants = |at: usize| messages.get(at).is_some_and(|last| last.role == "assistant");
    let last = messages.len() - 1;
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
    if !is_assistants(last) || goes_on == Some(false) {
        return Ok(Talk { messages, add_generation_prompt: opens.unwrap_or(true), begun: None });
    }
    if last > 0 && is_assistants(last - 1) {
        let message = "`messages`: two messages of the assistant at the end; want one at most, to go on with";
        return Err(ApiError { param: Some("messages".into()), ..ApiError::bad(message) });
    }
    let begun = messages.pop().map(|last| last.content);
    Ok(Talk { messages, add_generation_prompt: true, begun })
}

/// One message, which stands at `name` of a request.
///
/// # Errors
/// 400 that names the field.
pub fn message(name: String, value: &Value) -> Result<Message, ApiError> {
    let fields = Fields::inside(name, value)?;
    let Some(role) = fields.text("role")? else {
        return Err(ApiError::missing(&fields.path("role"), "a role"));
    };
    let known = ROLES.iter().find(|(name, _)| *name == role);
    let Some((_, role)) = known else {
        let names: Vec<&str> = ROLES.iter().map(|(name, _)| *name).collect();
        return Err(ApiError::field(
            fields.path("role"),
            &format!("one of {}", names.join(", ")),
            &role.into(),
        ));
    };
    let calls =
        fields.get("tool_calls").is_some_and(|calls| calls.as_array().is_none_or(|all| !all.is_empty()));
    if calls || fields.get("function_call").is_some() {
        return Err(ApiError::unsupported(fields.path("tool_calls")));
    }
    if fields.get("content").is_none() && *role != "assistant" {
        return Err(ApiError::missing(&fields.path("content"), "a text or a list of parts"));
    }
    Ok(Message::new(*role, content(&fields.path("content"), fields.get("content"))?))
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
        let fields = Fields::inside(format!("{name}[{at}]"), part)?;
        match fields.text("type")?.unwrap_or("text") {
            "text" | "input_text" | "output_text" => {}
            other => {
                let want = "`text`: this model reads nothing else";
                return Err(ApiError::field(fields.path("type"), want, &other.into()));
            }
        }
        let Some(text) = fields.text("text")? else {
            return Err(ApiError::missing(&fields.path("text"), "a text"));
        };
        texts.push(text.to_owned());
    }
    Ok(texts.join("\n"))
}
