//! The tools that a request offers, and which of them are to be called, in the words of each API.

use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::Fields;
use sterna_tools::{Choice, Tool, present};

/// Most tools of a request.
pub const TOOLS: usize = 256;
/// Most characters of a tool's name.
const NAME: usize = 128;

/// Tools that a message may call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolConfig {
    /// The tools.
    pub tools: Vec<Tool>,
    /// Choice of those that must be called.
    pub choice: Choice,
    /// A message may hold several calls.
    pub parallel: bool,
}

impl Default for ToolConfig {
    fn default() -> Self {
        Self { tools: Vec::new(), choice: Choice::Auto, parallel: true }
    }
}

impl ToolConfig {
    /// Tools of OpenAI's chat completions: `{"type": "function", "function": {…}}`.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn chat(fields: &Fields) -> Result<Self, ApiError> {
        for old in ["functions", "function_call"] {
            if fields.get(old).is_some_and(|value| value.as_str() != Some("none")) {
                let message = format!("`{old}` is not supported: `tools` and `tool_choice` say the same");
                return Err(ApiError::unsupported(old).with(message));
            }
        }
        Self { tools: nested(fields)?, ..Self::default() }.chosen(fields, is_named)
    }

    /// Tools of Anthropic's messages: `{"name": …, "input_schema": {…}}`.
    ///
    /// # Errors
    /// 400 that names the field; tools that Anthropic's servers or clients define are not here.
    pub fn messages(fields: &Fields) -> Result<Self, ApiError> {
        let mut tools = tools(fields, |outer| {
            kind(&outer, &["custom"], "custom")?;
            declared(&outer, "input_schema")
        })?;
        let Some(choice) = fields.object("tool_choice")? else {
            return Ok(Self { tools, ..Self::default() });
        };
        let wanted = chosen(fields, choice.text("type")?.map(str::to_owned), &mut tools, is_named)?;
        let single = choice.bool("disable_parallel_tool_use")?.unwrap_or(false);
        Ok(Self { tools, choice: wanted, parallel: !single })
    }

    /// Tools of ollama: OpenAI's form, and no choice.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn ollama(fields: &Fields) -> Result<Self, ApiError> {
        Ok(Self { tools: nested(fields)?, ..Self::default() })
    }

    /// With OpenAI's `tool_choice` and `parallel_tool_calls`. `is` says whether a tool is the one that an
    /// object of `tool_choice` names.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn chosen(mut self, fields: &Fields, is: impl Fn(&Value, &Tool) -> bool) -> Result<Self, ApiError> {
        let choice = fields.get("tool_choice");
        let word = choice.and_then(|value| value.as_str().or_else(|| value.get("type")?.as_str()));
        if choice.is_some() {
            self.choice = chosen(fields, word.map(str::to_owned), &mut self.tools, is)?;
        }
        self.parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
        Ok(self)
    }
}

/// The tools of a request, each read by `read`.
fn tools(fields: &Fields, read: impl Fn(Fields) -> Result<Tool, ApiError>) -> Result<Vec<Tool>, ApiError> {
    let list = fields.list("tools", TOOLS)?.unwrap_or_default().iter().enumerate();
    list.map(|(at, value)| read(Fields::inside(fields.path(&format!("tools[{at}]")), value)?)).collect()
}

fn nested(fields: &Fields) -> Result<Vec<Tool>, ApiError> {
    tools(fields, |outer| {
        kind(&outer, &["function"], "function")?;
        match outer.object("function")? {
            Some(function) => declared(&function, "parameters"),
            None => Err(ApiError::missing(&outer.path("function"), "an object with a name")),
        }
    })
}

/// Tools of other kinds are run by the servers of their API, or have schemas that only its models know.
fn kind(outer: &Fields, known: &[&str], default: &str) -> Result<(), ApiError> {
    let kind = outer.text("type")?.unwrap_or(default);
    if known.contains(&kind) {
        return Ok(());
    }
    let (name, shown) = (outer.path("type"), kind.escape_debug().take(80).collect::<String>());
    let message = format!(
        "`{name}`: this server does not run tools of the type `{shown}`: want `{}`, which the client runs; \
         switch the others off in the client",
        known[0]
    );
    Err(ApiError::unsupported(name).with(message))
}

/// The name of a tool.
///
/// # Errors
/// 400 if it has none that models write without a fault.
pub fn name(function: &Fields) -> Result<&str, ApiError> {
    let name = function.text("name")?.unwrap_or_default();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if !(1..=NAME).contains(&name.len()) || !name.chars().all(is_plain) {
        let want = format!("1 to {NAME} letters, digits, `_`, `-` and `.`");
        return Err(ApiError::field(function.path("name"), &want, &name.into()));
    }
    Ok(name)
}

/// A tool with its name, its description and, as the field `schema`, its parameters.
///
/// # Errors
/// 400 that names the field.
pub fn declared(function: &Fields, schema: &str) -> Result<Tool, ApiError> {
    let name = name(function)?;
    let parameters = match function.get(schema) {
        Some(Value::Array(list)) if list.is_empty() => None,
        _ => function.object(schema)?.and_then(|_| function.get(schema)),
    };
    let parameters = match parameters {
        Some(schema) => present(schema.clone()),
        None => json!({ "type": "object", "properties": {} }),
    };
    Ok(Tool {
        name: name.to_owned(),
        description: function.text("description")?.map(str::to_owned),
        parameters,
        shown: None,
        strict: function.bool("strict")?.unwrap_or(false),
    })
}

/// True if `asked`, of `tool_choice`, has the tool's name.
fn is_named(asked: &Value, tool: &Tool) -> bool {
    asked.get("function").unwrap_or(asked).get("name").and_then(Value::as_str) == Some(tool.name.as_str())
}

/// Choice of the tools to be called, as `word` of `tool_choice` says; those that are not allowed go.
fn chosen(
    fields: &Fields,
    word: Option<String>,
    tools: &mut Vec<Tool>,
    is: impl Fn(&Value, &Tool) -> bool,
) -> Result<Choice, ApiError> {
    const WANT: &str = "none, auto, required, or a tool of `tools`";
    let value = fields.get("tool_choice").unwrap_or(&Value::Null);
    let wrong = || ApiError::field(fields.path("tool_choice"), WANT, value);
    let choice = match word.as_deref().ok_or_else(wrong)? {
        "none" => Choice::None,
        "auto" => Choice::Auto,
        "required" | "any" => Choice::Required,
        "function" | "custom" | "tool" => {
            let tool = tools.iter().find(|tool| is(value, tool)).ok_or_else(wrong)?;
            Choice::Named(tool.name.clone())
        }
        "allowed_tools" => {
            let allowed = value.get("allowed_tools").unwrap_or(value);
            let allowed_tools = allowed.get("tools").and_then(Value::as_array).ok_or_else(wrong)?;
            tools.retain(|tool| allowed_tools.iter().any(|asked| is(asked, tool)));
            match allowed.get("mode").and_then(Value::as_str) {
                Some("required") => Choice::Required,
                _ => Choice::Auto,
            }
        }
        _ => return Err(wrong()),
    };
    if choice == Choice::Required && tools.is_empty() { Err(wrong()) } else { Ok(choice) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::of(value).unwrap()
    }

    #[test]
    fn every_api_says_the_same_in_its_own_words() {
        let schema = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
        let chat = json!({
            "tools": [{ "type": "function", "function": { "name": "f", "parameters": schema } }],
            "tool_choice": { "type": "function", "function": { "name": "f" } }, "parallel_tool_calls": false,
        });
        let messages = json!({
            "tools": [{ "name": "f", "input_schema": schema, "cache_control": { "type": "ephemeral" } }],
            "tool_choice": { "type": "tool", "name": "f", "disable_parallel_tool_use": true },
        });
        let chat = ToolConfig::chat(&fields(chat)).unwrap();
        assert_eq!((chat.choice.clone(), chat.parallel), (Choice::Named("f".into()), false));
        assert_eq!(ToolConfig::messages(&fields(messages)).unwrap(), chat);
        assert_eq!(ToolConfig::messages(&fields(json!({}))).unwrap(), ToolConfig::default());
        let ollama =
            json!({ "tools": [{ "type": "function", "function": { "name": "f", "parameters": schema } }] });
        assert_eq!(ToolConfig::ollama(&fields(ollama)).unwrap().tools, chat.tools);
    }

    #[test]
    fn what_cannot_be_offered_is_named() {
        let one = |kind: &str| json!({ "tools": [{ "type": kind, "name": "f" }] });
        let hosted = [
            ToolConfig::messages(&fields(one("web_search_20250305"))),
            ToolConfig::chat(&fields(one("custom"))),
        ];
        for refused in hosted {
            assert_eq!(refused.unwrap_err().param.as_deref(), Some("tools[0].type"));
        }
        for choice in [
            json!({}),
            json!({ "type": "tool" }),
            json!({ "type": "tool", "name": "g" }),
            json!({
            "type": "any" }),
        ] {
            let refused = ToolConfig::messages(&fields(json!({ "tools": [], "tool_choice": choice })));
            assert_eq!(refused.unwrap_err().param.as_deref(), Some("tool_choice"), "{choice}");
        }
    }
}
