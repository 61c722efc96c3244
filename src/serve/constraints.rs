//! What a request asks of the form of its answer: a grammar of some kind, or calls of tools.

use std::sync::Arc;

use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::Fields;
use super::model::Served;
use super::tool_config::ToolConfig;
use sterna_engine::GenerateOptions;
use sterna_grammar::{GrammarError, Source, Space, names_types};
use sterna_tokenizer::chat::Prompt;
use sterna_tools::{
    Choice, Format, ParserOptions, Syntax, Thoughts, Tool, Wanted, json_behind_thoughts, json_in_channels,
};

/// The form that an answer must have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constraints {
    /// The field that asks for a grammar, and the grammar.
    grammar: Option<(String, Source)>,
    /// White space in its JSON.
    space: Space,
    tool_config: ToolConfig,
    /// Format of the model's messages, if they are parsed: there may be calls, or parts in channels.
    format: Option<Format>,
    /// The model's thoughts, if it may have some.
    thoughts: Option<Thoughts>,
    /// True if they are split off.
    splits: bool,
}

/// Most lines that the log has of what a request's schemas do not enforce.
const MOST_LOGGED: usize = 20;

/// Fields that hold a grammar, and how it is read. Where no `strict` belongs to a schema, it is not.
type Read = fn(&Value) -> Option<Source>;
const GRAMMARS: &[(&str, Read)] = &[
    ("grammar", |value| Some(Source::Gbnf(value.as_str()?.to_owned()))),
    ("guided_grammar", |value| Some(Source::Gbnf(value.as_str()?.to_owned()))),
    ("json_schema", |value| schema(value, false)),
    ("guided_json", |value| schema(value, false)),
    ("guided_regex", |value| Some(Source::Regex(value.as_str()?.to_owned()))),
    ("guided_choice", choice),
];
/// vLLM's `structured_outputs` has one of these.
const STRUCTURED: &[(&str, Read)] = &[
    ("json", |value| schema(value, false)),
    ("regex", |value| Some(Source::Regex(value.as_str()?.to_owned()))),
    ("choice", choice),
    ("grammar", |value| Some(Source::Gbnf(value.as_str()?.to_owned()))),
    ("json_object", |value| value.as_bool()?.then_some(Source::JsonObject)),
];

/// A schema, which may also be a text that holds one. One of an unknown type is none, as for llama-server.
pub fn schema(value: &Value, strict: bool) -> Option<Source> {
    let schema = match value {
        Value::Object(_) | Value::Bool(_) => value.clone(),
        // Some languages write an empty object so.
        Value::Array(list) if list.is_empty() => json!({}),
        Value::String(text) => serde_json::from_str(text).ok()?,
        _ => return None,
    };
    names_types(&schema).then_some(Source::JsonSchema { schema, strict })
}

fn choice(value: &Value) -> Option<Source> {
    let texts = value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned));
    Some(Source::Choice(texts.collect::<Option<Vec<_>>>()?))
}

impl Constraints {
    /// Constraints of OpenAI's chat completions.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn of_chat(fields: &Fields, served: &Served) -> Result<Self, ApiError> {
        Self::of_conversation(fields, None, ToolConfig::chat(fields)?, served)
    }

    /// Constraints of a conversation: a grammar of `fields`, or `grammar` with the name of its field; or
    /// tools; and thoughts, which are split off if the template knows them.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn of_conversation(
        fields: &Fields,
        grammar: Option<(String, Source)>,
        tool_config: ToolConfig,
        served: &Served,
    ) -> Result<Self, ApiError> {
        let excludes = |one: &str, other: &str| {
            let message = format!("`{one}` and `{other}` exclude each other");
            ApiError { param: Some(one.to_owned()), ..ApiError::bad(message) }
        };
        let Self { grammar: of_fields, space, .. } = Self::of_text(fields)?;
        let grammar = match (of_fields, grammar) {
            (Some((other, _)), Some((name, _))) => return Err(excludes(&name, &other)),
            (one, other) => one.or(other),
        };
        let may_call = !tool_config.tools.is_empty() && tool_config.choice != Choice::None;
        // An answer beside calls may be JSON, and nothing else, by a grammar.
        if let Some((name, source)) = &grammar
            && may_call
            && json_form(source).is_none()
        {
            return Err(excludes(name, "tools"));
        }
        let splits = !matches!(fields.text("reasoning_format")?, Some("none"));
        let Syntax { calls, thoughts, .. } = served.syntax;
        let format = (may_call || calls.has_channels()).then_some(calls);
        Ok(Self { grammar, space, tool_config, format, thoughts, splits })
    }

    /// Constraints of a text: a grammar.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn of_text(fields: &Fields) -> Result<Self, ApiError> {
        let mut found: Vec<(String, Source)> = Vec::new();
        let is_nothing = |value: &Value| value.as_str() == Some("");
        let mut read = |fields: &Fields, known: &[(&str, Read)]| {
            for (name, read) in known {
                let Some(value) = fields.get(name).filter(|value| !is_nothing(value)) else { continue };
                match read(value) {
                    Some(source) => found.push((fields.path(name), source)),
                    None => return Err(ApiError::field(fields.path(name), "a grammar of that kind", value)),
                }
            }
            Ok(())
        };
        read(fields, GRAMMARS)?;
        if let Some(inner) = fields.object("structured_outputs")? {
            read(&inner, STRUCTURED)?;
        }
        if let Some(format) = fields.object("response_format")? {
            let source = response_format(&format, true)?;
            found.extend(source.map(|source| ("response_format".to_owned(), source)));
        }
        if let [(first, _), (second, _), ..] = &found[..] {
            let message = format!("`{first}` and `{second}` exclude each other");
            return Err(ApiError { param: Some(second.clone()), ..ApiError::bad(message) });
        }
        let space = match fields.text("json_whitespace")? {
            None | Some("compact") => Space::Compact,
            Some("free") => Space::Free,
            Some(other) => {
                let want = "one of compact, free";
                return Err(ApiError::field(fields.path("json_whitespace"), want, &other.into()));
            }
        };
        Ok(Self { grammar: found.pop(), space, ..Self::default() })
    }

    /// The same for a raw prompt, whose client reads the text as it comes: the model's own syntax counts for
    /// nothing.
    #[must_use]
    pub fn unread(self) -> Self {
        Self { format: None, thoughts: None, ..self }
    }

    /// True if a grammar leaves no room for thoughts.
    pub fn leaves_no_thoughts(&self) -> bool {
        self.grammar.is_some()
    }

    /// The tools that the model is told of.
    pub fn offered(&self) -> Option<&[Tool]> {
        (!self.tool_config.tools.is_empty() && self.tool_config.choice != Choice::None)
            .then_some(&self.tool_config.tools[..])
    }

    /// Holds what is generated behind `prompt` to this form.
    ///
    /// # Errors
    /// 400 for a grammar that cannot be used.
    pub fn apply(
        &self,
        served: &Served,
        prompt: &Prompt,
        options: &mut GenerateOptions,
    ) -> Result<(), ApiError> {
        let tokenizer = served.tokenizer();
        let token = |spelling: &str| tokenizer.token_id(spelling).filter(|id| tokenizer.is_special(*id));
        let answer = self.grammar.as_ref().and_then(|(_, source)| json_form(source));
        let in_channels = self.format.is_some_and(Format::has_channels);
        let mut marks = self.thoughts.into_iter().flat_map(Thoughts::spellings);
        options.show_special |=
            self.format.is_some_and(Format::needs_special) || marks.any(|mark| token(mark).is_some());
        let (name, source) = match (self.format.filter(|_| self.offered().is_some()), &self.grammar) {
            (Some(format), _) => {
                let wanted = Wanted {
                    tools: &self.tool_config.tools,
                    choice: &self.tool_config.choice,
                    parallel: self.tool_config.parallel,
                    thoughts: self.thoughts,
                    thinks: self.thinks(prompt),
                    answer: answer.as_ref().map(|(schema, strict)| (schema, *strict)),
                    token: &token,
                };
                let Some(grammar) = format.grammar(&wanted) else { return Ok(()) };
                if format.has_plain_texts() && self.tool_config.tools.iter().any(has_pattern) {
                    tracing::warn!("`tools`: texts in this model's calls are not held to `pattern`");
                }
                ("tools", Source::Lark(grammar))
            }
            (None, Some((name, source))) => {
                let source = match (answer, self.thoughts) {
                    (Some((schema, strict)), _) if in_channels => {
                        Source::Lark(json_in_channels(&schema, strict, &token))
                    }
                    (Some((schema, strict)), Some(Thoughts::Marked(marks)))
                        if self.splits && self.thinks(prompt) =>
                    {
                        Source::Lark(json_behind_thoughts(marks, &schema, strict, &token))
                    }
                    _ => source.clone(),
                };
                (name.as_str(), source)
            }
            (None, None) => return Ok(()),
        };
        match served.grammars().compile_with(&source, self.space) {
            Ok(compiled) => {
                let notes = compiled.notes();
                notes.iter().take(MOST_LOGGED).for_each(|note| tracing::warn!("`{name}`: {note}"));
                if notes.len() > MOST_LOGGED {
                    tracing::warn!("`{name}`: {} more like these", notes.len() - MOST_LOGGED);
                }
                options.grammar = Some(Arc::new(compiled));
            }
            Err(err @ GrammarError::Busy(_)) => return Err(ApiError::unavailable(err.to_string())),
            Err(err) => {
                let message = format!("`{name}`: {err}");
                return Err(ApiError { param: Some(name.to_owned()), ..ApiError::bad(message) });
            }
        }
        Ok(())
    }

    /// Options of the parser of the text behind `prompt`.
    pub fn reading(&self, prompt: &Prompt, seed: u64) -> ParserOptions {
        ParserOptions {
            format: self.format,
            tools: self.tool_config.tools.clone(),
            thoughts: self.thoughts.filter(|_| self.splits),
            thinks: self.thinks(prompt),
            seed,
        }
    }

    /// True if the template has opened the thoughts of the answer already.
    fn thinks(&self, prompt: &Prompt) -> bool {
        self.thoughts.is_some_and(|thoughts| thoughts.are_open(&prompt.text))
    }
}

/// True if an argument of a tool is a text with a `pattern`.
fn has_pattern(tool: &Tool) -> bool {
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    properties.is_some_and(|all| all.values().any(|schema| schema.get("pattern").is_some()))
}

/// The schema of a grammar for JSON, and whether all of its keywords are enforced. `None` for other grammars.
fn json_form(source: &Source) -> Option<(Value, bool)> {
    match source {
        Source::JsonObject => Some((json!({ "type": "object" }), true)),
        Source::JsonSchema { schema, strict } => schema.is_object().then(|| (schema.clone(), *strict)),
        _ => None,
    }
}

/// OpenAI's formats of answers. The schema is `nested` in an object `json_schema`, or stands beside `type`.
///
/// # Errors
/// 400 that names the field.
pub fn response_format(format: &Fields, nested: bool) -> Result<Option<Source>, ApiError> {
    let of = |holder: &Fields, name: &str, strict| match holder.get(name) {
        None => Ok(None),
        Some(value) => match schema(value, strict) {
            Some(source) => Ok(Some(source)),
            None => Err(ApiError::field(holder.path(name), "a JSON schema", value)),
        },
    };
    match format.text("type")?.unwrap_or("text") {
        "text" => Ok(None),
        // llama-server takes a schema here, too.
        "json_object" => Ok(Some(of(format, "schema", false)?.unwrap_or(Source::JsonObject))),
        "json_schema" => {
            let holder = match nested {
                true => format.object("json_schema")?,
                false => Some(format.clone()),
            };
            let Some(holder) = holder else {
                return Err(ApiError::missing(&format.path("json_schema"), "an object with a schema"));
            };
            let strict = holder.bool("strict")?.unwrap_or(false);
            match of(&holder, "schema", strict)? {
                Some(source) => Ok(Some(source)),
                None => Err(ApiError::missing(&holder.path("schema"), "a JSON schema")),
            }
        }
        other => {
            let want = "one of text, json_object, json_schema";
            Err(ApiError::field(format.path("type"), want, &other.into()))
        }
    }
}
