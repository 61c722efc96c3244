//! Constraints of a request on its answer: a grammar of some kind, or tool calls.

use std::sync::Arc;

use serde_json::{Value, json};

use schemars::SchemaGenerator;

use super::error::ApiError;
use super::fields::{Fields, Kind, request};
use super::kinds::{Any, Bool, Object, Text, Word};
use super::model::Served;
use super::tool_config::{ChatTools, ToolConfig};
use sterna_engine::GenerateOptions;
use sterna_grammar::{GrammarError, Source, Space, names_types};
use sterna_tokenizer::chat::Prompt;
use sterna_tools::{
    Choice, Format, ParserOptions, Syntax, Thoughts, Tool, Wanted, json_after_thoughts, json_in_channels,
};

/// Constraints on the form of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constraints {
    /// The field that has the grammar, and the grammar.
    grammar: Option<(String, Source)>,
    /// White space in its JSON.
    space: Space,
    tool_config: ToolConfig,
    /// Format of the model's messages, if they are parsed because of calls or channels.
    format: Option<Format>,
    /// Format of the model's thoughts, if it may think.
    thoughts: Option<Thoughts>,
    /// True if thoughts are split from the text.
    splits: bool,
}

/// Maximum lines logged about keywords of a request's schemas that are not enforced.
const MAX_LOGGED: usize = 20;

/// Path of the field, and its grammar.
type Found = (String, Source);

/// A field with a grammar, and its parser. An empty text counts as absent.
pub struct Grammar(fn(&Value) -> Option<Source>);

impl Grammar {
    const fn new(read: fn(&Value) -> Option<Source>) -> Self {
        Self(read)
    }
}

impl Kind for Grammar {
    type Value<'v> = Option<Found>;

    fn read(&self, path: String, value: &Value) -> Result<Option<Found>, ApiError> {
        if value.as_str() == Some("") {
            return Ok(None);
        }
        match (self.0)(value) {
            Some(source) => Ok(Some((path, source))),
            None => Err(ApiError::field(path, "a grammar of that kind", value)),
        }
    }

    fn schema(&self, _: &mut SchemaGenerator) -> Value {
        json!({})
    }
}

request! {
    /// A grammar for the answer: at most one of these fields. A schema without `strict` may have unsupported
    /// keywords that limit single values.
    pub struct Grammars {
        grammar: Grammar(gbnf) as { "type": "string" },
        guided_grammar: Grammar(gbnf) as { "type": "string" },
        json_schema: Grammar(loose) as { "type": ["object", "boolean", "string"] },
        guided_json: Grammar(loose) as { "type": ["object", "boolean", "string"] },
        guided_regex: Grammar(regex) as { "type": "string" },
        guided_choice: Grammar(choice) as { "type": "array", "items": { "type": "string" } },
        structured_outputs: Object<StructuredOutputs>,
        response_format: Object<ResponseFormat>,
        /// White space in JSON that follows a schema.
        json_whitespace: Word<Space>(&[("compact", Space::Compact), ("free", Space::Free)]),
    }
}

request! {
    /// vLLM's grammars: at most one of these fields.
    pub struct StructuredOutputs {
        json: Grammar(loose) as { "type": ["object", "boolean", "string"] },
        regex: Grammar(regex) as { "type": "string" },
        choice: Grammar(choice) as { "type": "array", "items": { "type": "string" } },
        grammar: Grammar(gbnf) as { "type": "string" },
        json_object: Grammar(|value| value.as_bool()?.then_some(Source::JsonObject)) as { "const": true },
    }
}

request! {
    /// OpenAI's output formats; the schema may also be next to the type, as in llama-server.
    pub struct ResponseFormat {
        ..StrictSchema,
        r#type: Word<FormatType>(FORMATS),
        json_schema: Object<StrictSchema>,
    }
}

request! {
    /// OpenAI's output formats, with the schema next to the type.
    pub struct TextFormat {
        ..StrictSchema,
        r#type: Word<FormatType>(FORMATS),
    }
}

request! {
    /// A schema, strict or not.
    pub struct StrictSchema {
        schema: Any as { "type": ["object", "boolean", "string"] },
        /// Enforces all of the schema's keywords.
        strict: Bool,
    }
}

request! {
    /// The form of an answer in a conversation.
    pub struct AnswerForm {
        ..Grammars,
        /// `none` keeps thoughts in the text.
        reasoning_format: Text,
    }
}

/// Type of OpenAI's output formats.
#[derive(Clone, Copy)]
pub enum FormatType {
    Text,
    JsonObject,
    JsonSchema,
}

const FORMATS: &[(&str, FormatType)] = &[
    ("text", FormatType::Text),
    ("json_object", FormatType::JsonObject),
    ("json_schema", FormatType::JsonSchema),
];

fn gbnf(value: &Value) -> Option<Source> {
    Some(Source::Gbnf(value.as_str()?.to_owned()))
}

fn regex(value: &Value) -> Option<Source> {
    Some(Source::Regex(value.as_str()?.to_owned()))
}

fn loose(value: &Value) -> Option<Source> {
    schema(value, false)
}

/// A schema, which may also be JSON in a text. `None` for other types, as in llama-server.
pub fn schema(value: &Value, strict: bool) -> Option<Source> {
    let schema = match value {
        Value::Object(_) | Value::Bool(_) => value.clone(),
        // Some languages encode an empty object as an empty list.
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
    pub fn of_chat(
        form: &Fields<'_, AnswerForm>,
        tools: &Fields<'_, ChatTools>,
        served: &Served,
    ) -> Result<Self, ApiError> {
        Self::of_conversation(form, None, ToolConfig::chat(tools)?, served)
    }

    /// Constraints of a conversation: a grammar from `fields`, or `grammar` with the name of its field; or
    /// tools. Thoughts are split from the text if the template supports them.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn of_conversation(
        fields: &Fields<'_, AnswerForm>,
        grammar: Option<Found>,
        tool_config: ToolConfig,
        served: &Served,
    ) -> Result<Self, ApiError> {
        let excludes = |one: &str, other: &str| {
            ApiError::in_field(one, format!("`{one}` and `{other}` exclude each other"))
        };
        let Self { grammar: of_fields, space, .. } = Self::of_text(&fields.part())?;
        let grammar = match (of_fields, grammar) {
            (Some((other, _)), Some((name, _))) => return Err(excludes(&name, &other)),
            (one, other) => one.or(other),
        };
        let may_call = !tool_config.tools.is_empty() && tool_config.choice != Choice::None;
        // Besides calls, a grammar can only allow answers in JSON.
        if let Some((name, source)) = &grammar
            && may_call
            && json_form(source).is_none()
        {
            return Err(excludes(name, "tools"));
        }
        let splits = fields.reasoning_format()? != Some("none");
        let Syntax { calls, thoughts, .. } = served.syntax;
        let format = (may_call || calls.has_channels()).then_some(calls);
        Ok(Self { grammar, space, tool_config, format, thoughts, splits })
    }

    /// Constraints of a completion: a grammar.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn of_text(fields: &Fields<'_, Grammars>) -> Result<Self, ApiError> {
        let mut found: Vec<Option<Found>> = Vec::new();
        found.extend(fields.grammar()?);
        found.extend(fields.guided_grammar()?);
        found.extend(fields.json_schema()?);
        found.extend(fields.guided_json()?);
        found.extend(fields.guided_regex()?);
        found.extend(fields.guided_choice()?);
        if let Some(inner) = fields.structured_outputs()? {
            found.extend(inner.json()?);
            found.extend(inner.regex()?);
            found.extend(inner.choice()?);
            found.extend(inner.grammar()?);
            found.extend(inner.json_object()?);
        }
        if let Some(format) = fields.response_format()? {
            found.push(response_format(&format)?.map(|source| ("response_format".to_owned(), source)));
        }
        let mut found: Vec<Found> = found.into_iter().flatten().collect();
        if let [(first, _), (second, _), ..] = &found[..] {
            let message = format!("`{first}` and `{second}` exclude each other");
            return Err(ApiError::in_field(second, message));
        }
        let space = fields.json_whitespace()?.unwrap_or(Space::Compact);
        Ok(Self { grammar: found.pop(), space, ..Self::default() })
    }

    /// The constraints for a raw prompt: its client reads the raw text, so the model's own message format is
    /// not parsed.
    #[must_use]
    pub fn unread(self) -> Self {
        Self { format: None, thoughts: None, ..self }
    }

    /// True if the grammar does not allow thoughts.
    pub fn leaves_no_thoughts(&self) -> bool {
        self.grammar.is_some()
    }

    /// The tools shown to the model.
    pub fn offered(&self) -> Option<&[Tool]> {
        (!self.tool_config.tools.is_empty() && self.tool_config.choice != Choice::None)
            .then_some(&self.tool_config.tools[..])
    }

    /// Constrains the text after `prompt`.
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
                    tracing::warn!("`tools`: `pattern` is not enforced for texts in this model's calls");
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
                        Source::Lark(json_after_thoughts(marks, &schema, strict, &token))
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
                notes.iter().take(MAX_LOGGED).for_each(|note| tracing::warn!("`{name}`: {note:.400}"));
                if notes.len() > MAX_LOGGED {
                    tracing::warn!("`{name}`: {} more like these", notes.len() - MAX_LOGGED);
                }
                options.grammar = Some(Arc::new(compiled));
            }
            Err(err @ GrammarError::Busy(_)) => return Err(ApiError::unavailable(err.to_string())),
            Err(err) => {
                // An answer's schema may be part of the grammar of tools.
                let name = match (&err, &self.grammar) {
                    (GrammarError::Keyword { tool: None, .. }, Some((field, _))) => field,
                    _ => name,
                };
                return Err(ApiError::in_field(name, format!("`{name}`: {err}")));
            }
        }
        Ok(())
    }

    /// Parser options for the text after `prompt`.
    pub fn reading(&self, prompt: &Prompt, seed: u64) -> ParserOptions {
        ParserOptions {
            format: self.format,
            tools: self.tool_config.tools.clone(),
            thoughts: self.thoughts.filter(|_| self.splits),
            thinks: self.thinks(prompt),
            seed,
        }
    }

    /// True if the prompt already contains the start of the thoughts.
    fn thinks(&self, prompt: &Prompt) -> bool {
        self.thoughts.is_some_and(|thoughts| thoughts.are_open(&prompt.text))
    }
}

/// True if an argument of a tool is a text with a `pattern`.
fn has_pattern(tool: &Tool) -> bool {
    let properties = tool.parameters.get("properties").and_then(Value::as_object);
    properties.is_some_and(|all| all.values().any(|schema| schema.get("pattern").is_some()))
}

/// The schema of a JSON grammar, and true if all keywords are enforced. `None` for other grammars.
fn json_form(source: &Source) -> Option<(Value, bool)> {
    match source {
        Source::JsonObject => Some((json!({ "type": "object" }), true)),
        Source::JsonSchema { schema, strict } => schema.is_object().then(|| (schema.clone(), *strict)),
        _ => None,
    }
}

/// The grammar of one of OpenAI's output formats.
///
/// # Errors
/// 400 that names the field.
pub fn response_format(format: &Fields<'_, ResponseFormat>) -> Result<Option<Source>, ApiError> {
    let kind = format.r#type()?;
    if let Some(FormatType::Text) = kind {
        return Ok(None);
    }
    let next_to_type = format.part::<StrictSchema>();
    let holder = match (format.json_schema()?, next_to_type.schema()?, kind) {
        (Some(inner), None, _) => inner,
        (Some(inner), Some(_), _) if inner.schema()?.is_some() => inner,
        (None, None, Some(FormatType::JsonSchema)) => {
            return Err(ApiError::missing(&format.path("json_schema"), "an object with a schema"));
        }
        _ => next_to_type,
    };
    of_type(kind, &holder)
}

/// The grammar of a format with the schema next to its type.
///
/// # Errors
/// 400 that names the field.
pub fn text_format(format: &Fields<'_, TextFormat>) -> Result<Option<Source>, ApiError> {
    of_type(format.r#type()?, &format.part())
}

/// A grammar for any JSON object, or for one with a schema, as in llama-server. A schema needs no type.
fn of_type(kind: Option<FormatType>, holder: &Fields<'_, StrictSchema>) -> Result<Option<Source>, ApiError> {
    let (path, strict) = (holder.path("schema"), holder.strict()?.unwrap_or(false));
    match (kind, holder.schema()?) {
        (Some(FormatType::Text), _) | (None, None) => Ok(None),
        (Some(FormatType::JsonObject), None) => Ok(Some(Source::JsonObject)),
        (Some(FormatType::JsonSchema), None) => Err(ApiError::missing(&path, "a JSON schema")),
        (_, Some(value)) => schema_at(path, value, strict).map(Some),
    }
}

/// The schema at `path` of a request.
///
/// # Errors
/// 400 if it is not a schema.
pub fn schema_at(path: String, value: &Value, strict: bool) -> Result<Source, ApiError> {
    schema(value, strict).ok_or_else(|| ApiError::field(path, "a JSON schema", value))
}
