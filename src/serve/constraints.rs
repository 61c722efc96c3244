//! What a request asks of the form of its answer. This is where structured output and tools come in: every
//! family of endpoints asks here before anything runs.

use serde_json::Value;

use super::error::ApiError;
use super::fields::Fields;

/// The form that an answer must have. Free text is the only one yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Constraints;

/// Fields that hold a grammar of some kind.
const GRAMMARS: &[&str] = &[
    "grammar",
    "json_schema",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
];

impl Constraints {
    /// Those of a request.
    ///
    /// # Errors
    /// 400 that names the field, for a form that is not supported.
    pub fn of(fields: &Fields) -> Result<Self, ApiError> {
        let is_nothing =
            |value: &Value| value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty);
        for name in GRAMMARS {
            if fields.get(name).is_some_and(|value| !is_nothing(value)) {
                return Err(ApiError::unsupported(*name));
            }
        }
        if let Some(format) = fields.object("response_format")?
            && format.text("type")?.unwrap_or("text") != "text"
        {
            return Err(ApiError::unsupported("response_format"));
        }
        let none = |name: &str| fields.get(name).and_then(Value::as_str) == Some("none");
        for (tools, choice) in [("tools", "tool_choice"), ("functions", "function_call")] {
            let asks = fields.get(tools).is_some_and(|tools| !is_nothing(tools));
            let of_none = fields
                .get(choice)
                .and_then(|choice| choice.get("type"))
                .is_some_and(|kind| kind.as_str() == Some("none"));
            if asks && !none(choice) && !of_none {
                return Err(ApiError::unsupported(tools));
            }
            let forces = fields.get(choice).is_some_and(|choice| choice.as_str() == Some("required"));
            if forces && !asks {
                return Err(ApiError::field(fields.path(choice), "tools beside it", &"required".into()));
            }
        }
        Ok(Self)
    }
}
