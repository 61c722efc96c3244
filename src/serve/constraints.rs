//! What a request asks of the form of its answer: a grammar of some kind, or calls of tools.

use std::sync::Arc;

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;
use super::model::Served;
use crate::engine::GenerateOptions;
use crate::grammar::{GrammarError, Source};
use crate::tokenizer::chat::Prompt;
use crate::tools::{Choice, Format, ParserOptions, Tool, Wanted};

/// Most tools of a request.
const TOOLS: usize = 128;
/// Most characters of a tool's name.
const NAME: usize = 64;

/// The form that an answer must have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constraints {
    /// The field that asks for a grammar, and the grammar.
    grammar: Option<(String, Source)>,
    /// The tools that may be called.
    tools: Vec<Tool>,
    choice: Choice,
    parallel: bool,
    /// Whether thoughts are split off.
    reasoning: bool,
}

/// Fields that hold a grammar, and how it is read.
type Read = fn(&Value) -> Option<Source>;
const GRAMMARS: &[(&str, Read)] = &[
    ("grammar", |value| Some(Source::Gbnf(value.as_str()?.to_owned()))),
    ("guided_grammar", |value| Some(Source::Gbnf(value.as_str()?.to_owned()))),
    ("json_schema", |value| schema(value, true)),
    ("guided_json", |value| schema(value, true)),
    ("guided_regex", |value| Some(Source::Regex(value.as_str()?.to_owned()))),
    ("guided_choice", choice),
];
/// vLLM's `structured_outputs` has one of these.
const STRUCTURED: &[(&str, Read)] = &[
    ("json", |value| schema(value, true)),
    ("regex", |value| Some(Source::Regex(value.as_str()?.to_owned()))),
    ("choice", choice),
    ("grammar", |value| Some(Source::Gbnf(value.as_str()?.to_owned()))),
    ("json_object", |value| value.as_bool()?.then_some(Source::JsonObject)),
];

/// A schema, which may also be a text that holds one.
fn schema(value: &Value, strict: bool) -> Option<Source> {
    match value {
        Value::Object(_) | Value::Bool(_) => Some(Source::JsonSchema { schema: value.clone(), strict }),
        Value::String(text) => Some(Source::JsonSchema { schema: serde_json::from_str(text).ok()?, strict }),
        _ => None,
    }
}

fn choice(value: &Value) -> Option<Source> {
    let texts = value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned));
    Some(Source::Choice(texts.collect::<Option<Vec<_>>>()?))
}

impl Constraints {
    /// Those of a conversation: a grammar or tools; and thoughts, which are split off if the template knows
    /// them.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn of(fields: &Fields, served: &Served) -> Result<Self, ApiError> {
        let Self { grammar, .. } = Self::of_text(fields)?;
        let mut tools = tools(fields)?;
        let choice = tool_choice(fields, &mut tools)?;
        if let (Some((name, _)), false) = (&grammar, tools.is_empty() || choice == Choice::None) {
            let message = format!("`{name}` and `tools` exclude each other");
            return Err(ApiError { param: Some(name.clone()), ..ApiError::bad(message) });
        }
        let splits = !matches!(fields.text("reasoning_format")?, Some("none"));
        Ok(Self {
            grammar,
            tools,
            choice,
            parallel: fields.bool("parallel_tool_calls")?.unwrap_or(true),
            reasoning: splits && served.template.source().contains("<think>"),
        })
    }

    /// Those of a text: a grammar.
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
            found.extend(response_format(&format)?.map(|source| ("response_format".to_owned(), source)));
        }
        if let [(first, _), (second, _), ..] = &found[..] {
            let message = format!("`{first}` and `{second}` exclude each other");
            return Err(ApiError { param: Some(second.clone()), ..ApiError::bad(message) });
        }
        Ok(Self { grammar: found.pop(), ..Self::default() })
    }

    /// Free text, of a family of endpoints that has no other yet.
    ///
    /// # Errors
    /// 400 that names the field, for a request that asks for more.
    pub fn none(fields: &Fields) -> Result<Self, ApiError> {
        let Self { grammar, .. } = Self::of_text(fields)?;
        if let Some((name, _)) = grammar {
            return Err(ApiError::unsupported(name));
        }
        let is_none = |name: &str| {
            let value = fields.get(name);
            let kind = value.and_then(|value| value.get("type")).or(value);
            kind.and_then(Value::as_str) == Some("none")
        };
        let asks = |name: &str| {
            fields.get(name).is_some_and(|tools| tools.as_array().is_none_or(|tools| !tools.is_empty()))
        };
        match asks("tools") && !is_none("tool_choice") {
            true => Err(ApiError::unsupported("tools")),
            false => Ok(Self::default()),
        }
    }

    /// Whether the answer is held to a grammar that leaves no room for thoughts.
    pub fn leaves_no_thoughts(&self) -> bool {
        self.grammar.is_some()
    }

    /// The tools that the model is told of.
    pub fn offered(&self) -> Option<&[Tool]> {
        (!self.tools.is_empty() && self.choice != Choice::None).then_some(&self.tools[..])
    }

    /// How calls are written, if there may be some.
    fn format(&self, served: &Served) -> Option<Format> {
        self.offered().map(|_| Format::of_template(served.template.source()))
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
        let (name, source) = match (self.format(served), &self.grammar) {
            (Some(format), _) => {
                let tokenizer = served.tokenizer();
                let token =
                    |spelling: &str| tokenizer.token_id(spelling).filter(|id| tokenizer.is_special(*id));
                let wanted = Wanted {
                    tools: &self.tools,
                    choice: &self.choice,
                    parallel: self.parallel,
                    thinks: thinks(prompt),
                    token: &token,
                };
                options.show_special |= format.needs_special();
                let Some(grammar) = format.grammar(&wanted) else { return Ok(()) };
                ("tools", Source::Lark(grammar))
            }
            (None, Some((name, source))) => (name.as_str(), source.clone()),
            (None, None) => return Ok(()),
        };
        match served.grammars().compile(&source) {
            Ok(compiled) => options.grammar = Some(Arc::new(compiled)),
            Err(err @ GrammarError::Busy(_)) => return Err(ApiError::unavailable(err.to_string())),
            Err(err) => {
                let message = format!("`{name}`: {err}");
                return Err(ApiError { param: Some(name.to_owned()), ..ApiError::bad(message) });
            }
        }
        Ok(())
    }

    /// How the text behind `prompt` is read.
    pub fn reading(&self, served: &Served, prompt: &Prompt, seed: u64) -> ParserOptions {
        ParserOptions {
            format: self.format(served),
            tools: self.tools.clone(),
            reasoning: self.reasoning,
            thinks: thinks(prompt),
            seed,
        }
    }
}

/// Whether the template has opened the thoughts of the answer already.
fn thinks(prompt: &Prompt) -> bool {
    prompt.text.trim_end().ends_with("<think>")
}

fn response_format(format: &Fields) -> Result<Option<Source>, ApiError> {
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
        "json_object" => Ok(Some(of(format, "schema", true)?.unwrap_or(Source::JsonObject))),
        "json_schema" => {
            let Some(holder) = format.object("json_schema")? else {
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

/// The tools of a request.
fn tools(fields: &Fields) -> Result<Vec<Tool>, ApiError> {
    for old in ["functions", "function_call"] {
        if fields.get(old).is_some_and(|value| value.as_str() != Some("none")) {
            let message = format!("`{old}` is not supported: `tools` and `tool_choice` say the same");
            return Err(ApiError::unsupported(old).with(message));
        }
    }
    let list = fields.list("tools", TOOLS)?.unwrap_or_default().iter().enumerate();
    list.map(|(at, value)| tool(&fields.path(&format!("tools[{at}]")), value)).collect()
}

fn tool(path: &str, value: &Value) -> Result<Tool, ApiError> {
    let outer = Fields::inside(path, value)?;
    let kind = outer.text("type")?.unwrap_or("function");
    if kind != "function" {
        return Err(ApiError::field(outer.path("type"), "`function`", &kind.into()));
    }
    let Some(function) = outer.object("function")? else {
        return Err(ApiError::missing(&outer.path("function"), "an object with a name"));
    };
    let name = function.text("name")?.unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if !(1..=NAME).contains(&name.len()) || !name.chars().all(is_plain) {
        let want = format!("1 to {NAME} letters, digits, `_`, `-` and `.`");
        return Err(ApiError::field(function.path("name"), &want, &name.into()));
    }
    let parameters = match function.object("parameters")? {
        Some(_) => function.get("parameters").cloned().unwrap_or_default(),
        None => serde_json::json!({ "type": "object", "properties": {} }),
    };
    Ok(Tool {
        name: name.to_owned(),
        description: function.text("description")?.map(str::to_owned),
        parameters,
        strict: function.bool("strict")?.unwrap_or(false),
    })
}

/// Which of the tools are to be called; those that are not allowed go.
fn tool_choice(fields: &Fields, tools: &mut Vec<Tool>) -> Result<Choice, ApiError> {
    const WANT: &str = "none, auto, required, or a tool of `tools`";
    let Some(value) = fields.get("tool_choice") else { return Ok(Choice::Auto) };
    let wrong = || ApiError::field(fields.path("tool_choice"), WANT, value);
    let name_of = |value: &Value| -> Option<String> {
        let function = value.get("function").unwrap_or(value);
        Some(function.get("name")?.as_str()?.to_owned())
    };
    let choice = match value.as_str().or_else(|| value.get("type")?.as_str()).ok_or_else(wrong)? {
        "none" => Choice::None,
        "auto" => Choice::Auto,
        "required" | "any" => Choice::Required,
        "function" => Choice::Named(name_of(value).ok_or_else(wrong)?),
        "allowed_tools" => {
            let allowed = value.get("allowed_tools").unwrap_or(value);
            let names = allowed.get("tools").and_then(Value::as_array).ok_or_else(wrong)?;
            let names: Vec<String> = names.iter().filter_map(name_of).collect();
            tools.retain(|tool| names.contains(&tool.name));
            match allowed.get("mode").and_then(Value::as_str) {
                Some("required") => Choice::Required,
                _ => Choice::Auto,
            }
        }
        _ => return Err(wrong()),
    };
    let is_there = match &choice {
        Choice::None | Choice::Auto => true,
        Choice::Required => !tools.is_empty(),
        Choice::Named(name) => tools.iter().any(|tool| tool.name == *name),
    };
    if is_there { Ok(choice) } else { Err(wrong()) }
}
