//! Tools: how a model is held to a format of calls, and how its text is read back, piece by piece.
//!
//! A model writes calls and thoughts as it was trained to, which its template tells: [`Syntax::of_model`]. A
//! format of calls gives the grammar that a message with calls follows ([`Format::grammar`], Lark for the
//! room `grammar`), and the [`Parser`] that turns pieces of text into [`Delta`]s. [`Thoughts`] are split off
//! on the way.
//!
//! This module knows messages and templates, and must never know HTTP or an engine.
#![forbid(unsafe_code)]

mod bracketed;
mod format;
mod head;
mod json;
mod lark;
mod parser;
mod scan;
mod tagged;
mod thoughts;

#[cfg(test)]
mod tests;

use serde_json::{Value, json};

pub use format::Format;
pub use lark::{Wanted, json_behind_thoughts, json_in_channels};
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
    /// Schema that the model is shown, if it is another one: without what the description says.
    pub shown: Option<Value>,
    /// True if every keyword of the schema must be enforced.
    pub strict: bool,
}

impl Tool {
    /// The tool as templates and clients write it.
    pub fn to_json(&self) -> Value {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = json!(description);
        }
        function["parameters"] = self.shown.as_ref().unwrap_or(&self.parameters).clone();
        json!({ "type": "function", "function": function })
    }

    /// True if the schema says that an argument is a text.
    fn takes_text(&self, argument: &str) -> bool {
        self.parameters.pointer("/properties").and_then(|all| all.get(argument)).is_some_and(is_text)
    }
}

/// A schema without what is null, which is absent; an object of schemas may be written as an empty list.
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

/// Which tools a message must, may or must not call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Text, or calls, as the model likes.
    #[default]
    Auto,
    /// At least one call.
    Required,
    /// A call of this tool.
    Named(String),
    /// Text alone.
    None,
}
