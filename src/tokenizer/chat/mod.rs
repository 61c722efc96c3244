//! Chat templates: they render a conversation to the text that a model was trained to continue.
//!
//! A template is Jinja: from the file (`tokenizer.chat_template`), from the user, or one of [`BUILT_IN`]. It
//! is untrusted code: `budget.rs` limits its resources. Start at [`ChatTemplate::choose`].

mod abilities;
mod budget;
mod environment;
mod expression;
mod filters;
mod forms;
mod json;
mod macros;
mod message;
mod methods;
mod names;
mod operators;
mod plain;
mod python;
mod rewrite;
mod time;

#[cfg(test)]
mod jinja_golden;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value as Json};

use sterna_gguf::Metadata;

use super::{Special, Tokenizer};
use plain::Mark;

pub use abilities::Abilities;
pub use message::{Message, ToolCall};

/// Variables of a template besides the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extras {
    /// Tools that may be called, as clients describe them: `{"type": "function", "function": {…}}`.
    pub tools: Vec<Json>,
    /// Variables for the template, such as `enable_thinking`. They do not override the standard ones.
    pub variables: Map<String, Json>,
    /// Texts before and after each image of the messages, whose place is [`IMAGE`] in their content. Control
    /// tokens in them are parsed. `None` if [`IMAGE`] has no meaning.
    pub around_images: Option<[&'static str; 2]>,
}

/// Marks the place of an image in the content of a message: two characters that no text has.
pub const IMAGE: &str = "\u{fdd0}\u{fdd1}";

/// Errors of rendering a conversation with a template.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The file has no template and none was chosen.
    #[error("the file has no chat template, and none was chosen; built-in ones: {}", names())]
    Missing,
    /// The name is neither built in nor a file.
    #[error("chat template `{found}` is neither a file nor a built-in one: {}", names())]
    Unknown {
        /// The requested name.
        found: String,
    },
    /// The template is not valid Jinja, or exceeds its memory or time limit.
    #[error("the chat template cannot be used: {detail}")]
    Template {
        /// The error and its line.
        detail: String,
    },
    /// The template itself refuses the conversation (`raise_exception`).
    #[error("the chat template refuses the conversation: {message}")]
    Refused {
        /// The template's own message.
        message: String,
    },
}

/// Templates known by name.
pub const BUILT_IN: &[(&str, &str)] = &[
    (
        "bitnet",
        "{{ bos_token }}{% for message in messages %}{{ message.role | capitalize }}: {{ message.content | \
         trim }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}{{ 'Assistant: ' }}{% endif %}",
    ),
    (
        "chatml",
        "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + \
         '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% \
         endif %}",
    ),
    (
        "llama3",
        "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message.role + \
         '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}{% endfor %}{% if \
         add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
    ),
];

/// Names of [`BUILT_IN`], for error messages.
fn names() -> String {
    BUILT_IN.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// Source of a built-in template.
pub fn built_in(name: &str) -> Option<&'static str> {
    BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
}

/// A conversation in the form that the model reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// As text, control tokens spelled out.
    pub text: String,
    /// As tokens.
    pub ids: Vec<u32>,
    /// Number of tokens before each image.
    pub images: Vec<usize>,
}

/// Start of an answer: a function that returns the control tokens that open it, given the rendered
/// conversation; and its text.
pub type Begun<'a> = (&'a dyn Fn(&str) -> String, &'a str);

/// A template and the vocabulary entries it needs.
pub struct ChatTemplate {
    source: String,
    bos: String,
    eos: String,
    /// True if the content of a message that only calls tools is none instead of an empty text.
    has_null_content: bool,
    /// True if a message with a text and calls is shown as two, because the template omits one of them.
    splits_calls: bool,
    notices: Vec<String>,
}

/// Name of the only template in the environment.
const NAME: &str = "chat template";

impl ChatTemplate {
    /// Returns the template of a file, unless the user's `chosen` (the name of a built-in one, or Jinja
    /// source) overrides it. The template in published BitNet files is stale and is replaced.
    ///
    /// # Errors
    /// [`ChatError::Missing`] if there is no template; [`ChatError::Template`] if it is not valid Jinja.
    pub fn choose(
        metadata: &Metadata,
        tokenizer: &Tokenizer,
        chosen: Option<&str>,
    ) -> Result<Self, ChatError> {
        if let Some(chosen) = chosen {
            return Self::new(built_in(chosen).unwrap_or(chosen), tokenizer);
        }
        let text = |key| metadata.str(key).ok().flatten();
        let bitnet =
            text("general.architecture").is_some_and(|name| matches!(name, "bitnet-b1.58" | "bitnet-25"));
        let (source, notice) = match text("tokenizer.chat_template") {
            Some(source) if source.contains("BITNETAssistant") => (
                built_in("bitnet"),
                Some("the file's chat template is stale (BITNETAssistant): using `bitnet`"),
            ),
            Some(source) => (Some(source), None),
            None if bitnet => (built_in("bitnet"), Some("the file has no chat template: using `bitnet`")),
            None => (None, None),
        };
        let mut template = Self::new(source.ok_or(ChatError::Missing)?, tokenizer)?;
        template.notices.extend(notice.map(|notice| format!("{notice}, unless another is chosen")));
        Ok(template)
    }

    /// True if the template shows the tool call of a message with this text, and the text.
    fn shows_call(&self, said: &str) -> bool {
        let call = ToolCall {
            id: Some("callfirst".into()),
            name: "shown_first".into(),
            arguments: r#"{"x": "a"}"#.into(),
        };
        let asked = Message { tool_calls: vec![call], ..Message::new("assistant", said) };
        let messages = self.as_shown(&[Message::new("user", "a question"), asked]);
        let text = self.render_as_is(&messages, &Extras::default(), false);
        // Some templates need tools.
        let text = text.or_else(|_| self.render_as_is(&messages, &abilities::with_tool(), false));
        text.is_ok_and(|text| text.contains("shown_first") && text.contains(said))
    }

    /// Creates a template from its source.
    ///
    /// # Errors
    /// [`ChatError::Template`] if it is not valid Jinja.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self, ChatError> {
        let spelling = |id: Option<u32>| {
            let bytes = id.map(|id| tokenizer.token_bytes(id)).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        Self::with_tokens(source, spelling(tokenizer.bos()), spelling(tokenizer.eos()))
    }

    /// Creates a template from its source and the spellings of BOS and EOS. CRLF and CR become newlines, also
    /// in literals, as in Jinja2.
    ///
    /// # Errors
    /// [`ChatError::Template`] if it is not valid Jinja.
    pub fn with_tokens(source: &str, bos: String, eos: String) -> Result<Self, ChatError> {
        let source = source.replace("\r\n", "\n").replace('\r', "\n");
        environment::with_template(NAME, &source).map_err(|err| template_error(&err))?;
        let notices = Vec::new();
        let mut template = Self { source, bos, eos, has_null_content: false, splits_calls: false, notices };
        if !template.source.contains("tool_calls") {
            return Ok(template);
        }
        // Some templates show calls only if `content is none`; others fail on none.
        if !template.shows_call("") {
            template.has_null_content = true;
            template.has_null_content = template.shows_call("");
        }
        // Some show either the text of a message or its calls.
        if !template.shows_call("shown text") {
            template.splits_calls = true;
            template.splits_calls = template.shows_call("shown text");
        }
        Ok(template)
    }

    /// Renders the conversation as text with special tokens spelled out (encode with
    /// [`super::Special::Parse`]). With `add_generation_prompt`, it ends where the assistant's next message
    /// begins.
    ///
    /// # Errors
    /// [`ChatError::Refused`] if the template raises an exception; [`ChatError::Template`] if it fails or
    /// exceeds its limits.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, ChatError> {
        self.render_with(messages, &Extras::default(), add_generation_prompt)
    }

    /// Like [`render`](Self::render), with tools and variables. If the template refuses the conversation, or
    /// omits the words of a system message, others of its forms are tried: with one system message at the
    /// start, with consecutive messages of a role merged, with the system's words in the user's messages.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn render_with(
        &self,
        messages: &[Message],
        extras: &Extras,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let rendered = self.render_form(messages, extras, add_generation_prompt);
        // Some templates require a description of every tool.
        if matches!(rendered, Err(ChatError::Template { .. }))
            && let Some(extras) = with_descriptions(extras)
        {
            return self.render_form(messages, &extras, add_generation_prompt).or(rendered);
        }
        rendered
    }

    /// Renders the first form of the conversation that the template takes.
    fn render_form(
        &self,
        messages: &[Message],
        extras: &Extras,
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let render = |messages: &[Message]| self.render_as_is(messages, extras, add_generation_prompt);
        let given = self.as_shown(messages);
        let as_is = render(&given);
        let is_final = match &as_is {
            Ok(text) => !omits_system(&given, text, render),
            Err(err) => {
                environment::raised(err).is_none() && err.kind() != minijinja::ErrorKind::UndefinedError
            }
        };
        let mut first = None;
        if !is_final {
            let mut tried = vec![given];
            // Text that is merged with calls may be omitted, so that is the last resort.
            for form in forms::forms(&tried[0].clone(), false).chain(forms::forms(messages, true)) {
                if tried.contains(&form) {
                    continue;
                }
                if let Ok(text) = render(&form) {
                    if has_system(messages, &text) {
                        return Ok(text);
                    }
                    first.get_or_insert(text);
                }
                tried.push(form);
            }
        }
        as_is.or_else(|err| first.ok_or(err)).map_err(|err| match environment::raised(&err) {
            Some(message) => ChatError::Refused { message },
            None => template_error(&err),
        })
    }

    /// The messages, with those split that have a text and calls if the template shows only one of them.
    fn as_shown(&self, messages: &[Message]) -> Vec<Message> {
        let mut shown = Vec::with_capacity(messages.len());
        for message in messages {
            let mut message = message.clone();
            if self.splits_calls && !message.content.is_empty() && !message.tool_calls.is_empty() {
                let tool_calls = std::mem::take(&mut message.tool_calls);
                shown.push(message);
                message = Message { tool_calls, ..Message::new("assistant", "") };
            }
            shown.push(message);
        }
        shown
    }

    /// Renders exactly these messages.
    fn render_as_is(
        &self,
        messages: &[Message],
        extras: &Extras,
        add_generation_prompt: bool,
    ) -> Result<String, minijinja::Error> {
        let messages = messages.iter().map(|message| message.value(self.has_null_content)).collect();
        let context = environment::context(messages, extras, [&self.bos, &self.eos], add_generation_prompt);
        // Each rendering has a new environment and thus a new budget.
        let env = environment::with_template(NAME, &self.source)?;
        env.get_template(NAME)?.render(context)
    }

    /// Encodes a rendered conversation. Adds BOS unless the template spelled it.
    pub fn encode(&self, tokenizer: &Tokenizer, rendered: &str) -> Vec<u32> {
        let spelled = !self.bos.is_empty() && rendered.starts_with(&self.bos);
        let mut ids = Vec::new();
        if tokenizer.add_bos() && !spelled {
            ids.extend(tokenizer.bos());
        }
        ids.extend(tokenizer.encode(rendered, Special::Parse, false));
        ids
    }

    /// Encodes the conversation so that no message can forge a turn: a control token spelled in a message is
    /// plain text. With `begun`, the assistant's next message starts with it; its text is plain text, too.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        extras: &Extras,
        add_generation_prompt: bool,
        begun: Option<Begun<'_>>,
    ) -> Result<Prompt, ChatError> {
        let words = begun.map_or("", |(_, words)| words);
        let mark = Mark::unused(messages, extras, &[self.source.as_str(), words])?;
        let messages = mark.put_all(tokenizer, messages);
        let extras = mark.put_extras(tokenizer, extras);
        let mut marked = self.render_with(&messages, &extras, add_generation_prompt)?;
        if let Some((opening, words)) = begun {
            marked += &opening(&marked);
            marked += &mark.put(tokenizer, words);
        }
        let (text, plain) = mark.take(&marked);
        let spelled = !self.bos.is_empty() && text.starts_with(&self.bos) && plain.first() != Some(&0);
        let mut ids = Vec::new();
        if tokenizer.add_bos() && !spelled {
            ids.extend(tokenizer.bos());
        }
        let Some([before, after]) = extras.around_images else {
            tokenizer.encode_but(&text, Special::Parse, &plain, &mut ids);
            return Ok(Prompt { text, ids, images: Vec::new() });
        };
        let (mut images, mut start) = (Vec::new(), 0);
        let n_parts = text.matches(IMAGE).count() + 1;
        for (at, part) in text.split(IMAGE).enumerate() {
            let (first, last) = (at == 0, at + 1 == n_parts);
            let [after, before] = [if first { "" } else { after }, if last { "" } else { before }];
            if !first {
                images.push(ids.len());
            }
            let of_part = plain.iter().filter(|at| (start..start + part.len()).contains(*at));
            let of_part: Vec<usize> = of_part.map(|at| at - start + after.len()).collect();
            let part_text = format!("{after}{part}{before}");
            tokenizer.encode_but(&part_text, Special::Parse, &of_part, &mut ids);
            start += part.len() + IMAGE.len();
        }
        Ok(Prompt { text, ids, images })
    }

    /// Jinja source of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Warnings about values that were assumed or replaced, one sentence each, to be shown once.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }
}

/// The variables with an empty description of each tool that has none; `None` if there is no such tool.
fn with_descriptions(extras: &Extras) -> Option<Extras> {
    let mut extras = extras.clone();
    let functions = extras.tools.iter_mut().filter_map(|tool| tool.get_mut("function")?.as_object_mut());
    let bare: Vec<_> = functions.filter(|function| !function.contains_key("description")).collect();
    if bare.is_empty() {
        return None;
    }
    bare.into_iter().for_each(|function| drop(function.insert("description".into(), "".into())));
    Some(extras)
}

/// True if `text` contains the words of every system message.
fn has_system(messages: &[Message], text: &str) -> bool {
    let mut system = messages.iter().filter(|message| forms::is_system(message));
    system.all(|message| text.contains(message.content.trim()))
}

/// True if `text`, which is rendered from `messages`, does not depend on some system message.
fn omits_system<E>(
    messages: &[Message],
    text: &str,
    render: impl Fn(&[Message]) -> Result<String, E>,
) -> bool {
    let is_missing = |message: &Message| !has_system(std::slice::from_ref(message), text);
    let Some(at) = messages.iter().position(is_missing) else { return false };
    let mut others = messages.to_vec();
    others[at].content = format!("x{}x", others[at].content);
    render(&others).is_ok_and(|other| other == text)
}

fn template_error(err: &minijinja::Error) -> ChatError {
    ChatError::Template { detail: err.to_string() }
}
