//! The owner of a schema, which decides what of it must be enforced.

use serde_json::Value;

use super::GrammarError;

/// Keywords that limit single values: an answer without them still has the form that the schema describes.
/// `oneOf` becomes `anyOf`.
const OF_VALUES: &[&str] = &[
    "const",
    "contains",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "oneOf",
    "pattern",
    "propertyNames",
    "uniqueItems",
];

/// How to treat what cannot be enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    /// Everything is an error.
    Strict,
    /// The form of a value is enforced; keywords of [`OF_VALUES`] may be left out.
    Form,
    /// Everything may be left out: the schema of a tool, which comes with others.
    Lenient,
}

/// Owner of a schema, and how to treat what cannot be enforced.
#[derive(Clone, Debug)]
pub struct Owner {
    /// Name of the tool whose arguments it describes.
    pub tool: Option<String>,
    /// Position in a larger schema, as a JSON pointer with `#`.
    pub at: String,
    pub strictness: Strictness,
}

impl Owner {
    /// Owner of a standalone schema.
    pub fn alone(strict: bool) -> Self {
        let strictness = if strict { Strictness::Strict } else { Strictness::Form };
        Self { tool: None, at: "#".to_owned(), strictness }
    }

    /// Owner given in the `x-guidance` of a schema within Lark.
    pub fn of(schema: &Value) -> Self {
        let said = schema.get("x-guidance").unwrap_or(&Value::Null);
        let text = |name: &str| said.get(name).and_then(Value::as_str).map(str::to_owned);
        let tool = text("tool");
        let strictness = match said.get("lenient") {
            Some(Value::Bool(true)) if tool.is_some() => Strictness::Lenient,
            Some(Value::Bool(true)) => Strictness::Form,
            _ => Strictness::Strict,
        };
        Self { tool, at: text("at").unwrap_or_else(|| "#".to_owned()), strictness }
    }

    pub fn is_lenient(&self) -> bool {
        self.strictness == Strictness::Lenient
    }

    pub fn says(&self, what: &str) -> String {
        match &self.tool {
            Some(tool) => format!("the tool `{tool}`: {what}"),
            None => what.to_owned(),
        }
    }

    /// Records that a keyword is not enforced.
    ///
    /// # Errors
    /// [`GrammarError::Keyword`] if it must be.
    pub fn leave_out(
        &self,
        keyword: &str,
        at: &str,
        why: &str,
        notes: &mut Vec<String>,
    ) -> Result<(), GrammarError> {
        let is_needed = match self.strictness {
            Strictness::Strict => true,
            Strictness::Form => !OF_VALUES.contains(&keyword),
            Strictness::Lenient => false,
        };
        if is_needed {
            return Err(self.refuses(keyword, at, why));
        }
        notes.push(self.says(&format!("`{keyword}` at {at} is not enforced: {why}")));
        Ok(())
    }

    /// The error for a keyword that must be enforced.
    pub fn refuses(&self, keyword: &str, at: &str, why: &str) -> GrammarError {
        let (keyword, at, why) = (keyword.to_owned(), at.to_owned(), why.to_owned());
        GrammarError::Keyword { tool: self.tool.clone(), keyword, at, why }
    }
}
