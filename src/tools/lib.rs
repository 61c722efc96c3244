//! Tool calls: constrains a model to a call format, and parses its output incrementally.
//!
//! A model writes calls and reasoning as it was trained to; the template reveals the format:
//! [`Syntax::of_template`]. A call format provides the grammar of a message with calls ([`Format::grammar`],
//! in Lark, for the crate `grammar`) and the [`Parser`] that converts pieces of text to [`Delta`]s. The
//! parser also splits off [`Thoughts`].
//!
//! This crate knows messages and templates, but neither HTTP nor the engine.
#![forbid(unsafe_code)]

mod bracketed;
mod format;
mod head;
mod json;
mod lark;
mod listed;
mod parser;
mod scan;
mod tagged;
mod thoughts;

#[cfg(test)]
mod templates_tests;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

pub use format::Format;
pub use lark::{Wanted, json_after_thoughts, json_in_channels};
pub use parser::{Delta, Parser, ParserOptions};
pub use thoughts::{MARKS, Marks, Syntax, THINK, Thoughts};

/// A tool that a model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// Its purpose.
    pub description: Option<String>,
    /// JSON schema of its arguments, an object.
    pub parameters: Value,
    /// Schema that is shown to the model, if it differs from `parameters`.
    pub shown: Option<Value>,
    /// True if every keyword of the schema must be enforced.
    pub strict: bool,
}

impl Tool {
    /// The tool in the JSON format of templates and clients.
    pub fn to_json(&self) -> Value {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = json!(description);
        }
        function["parameters"] = self.shown.as_ref().unwrap_or(&self.parameters).clone();
        json!({ "type": "function", "function": function })
    }

    /// True if the schema declares an argument as a string.
    fn takes_text(&self, argument: &str) -> bool {
        self.parameters.pointer("/properties").and_then(|all| all.get(argument)).is_some_and(is_text)
    }
}

/// Removes null values from a schema, where they mean absent; an empty list in place of a map of schemas
/// becomes an empty object.
#[must_use]
pub fn present(schema: Value) -> Value {
    let Value::Object(object) = schema else { return schema };
    let kept = object.into_iter().filter(|(key, value)| !value.is_null() || key == "const");
    let tidied = kept.map(|(key, value)| {
        let value = match (key.as_str(), value) {
            ("const" | "default" | "enum" | "examples", value) => value,
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Array(list))
                if list.is_empty() =>
            {
                json!({})
            }
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(named)) => named
                .into_iter()
                .map(|(name, schema)| (name, if schema.is_null() { json!({}) } else { present(schema) }))
                .collect(),
            (_, Value::Array(list)) => list.into_iter().map(present).collect(),
            (_, value) => present(value),
        };
        (key, value)
    });
    tidied.collect::<serde_json::Map<_, _>>().into()
}

fn is_text(schema: &Value) -> bool {
    schema.get("type").and_then(Value::as_str) == Some("string")
}

/// Tools that a message must, may or must not call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Text or calls: the model decides.
    #[default]
    Auto,
    /// At least one call.
    Required,
    /// A call of this tool.
    Named(String),
    /// Only text.
    None,
}
