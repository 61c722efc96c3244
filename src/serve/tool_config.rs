//! The tools of a request, and the choice among them, in the format of each API.

use serde_json::{Map, Value, json};

use super::error::ApiError;
use super::fields::{Fields, missing, request};
use super::kinds::{Any, Bool, Entries, List, Object, Text};
use sterna_tools::{Choice, Tool, present};

/// Maximum tools of a request.
pub const TOOLS: usize = 256;
/// Maximum characters of a tool's name.
const NAME: usize = 128;

request! {
    /// Fields of a tool that all APIs share; their names for the parameters differ.
    pub struct Declared {
        name: Text as { "pattern": "^[A-Za-z0-9_.-]{1,128}$" } or no_name,
        description: Text,
        /// Enforces the whole schema on arguments.
        strict: Bool,
    }
}

request! {
    /// A function that the client runs.
    pub struct Function {
        ..Declared,
        parameters: Any as { "type": "object" },
    }
}

request! {
    /// A tool of OpenAI's chat completions.
    pub struct ChatTool {
        r#type: Text as { "const": "function" },
        function: Object<Function> or missing("an object with a name"),
    }
}

request! {
    /// A tool of Anthropic's messages API.
    pub struct MessagesTool {
        ..Declared,
        r#type: Text as { "const": "custom" },
        input_schema: Any as { "type": "object" },
    }
}

request! {
    /// Tools in OpenAI's format.
    pub struct Tools {
        tools: List<ChatTool>(TOOLS),
    }
}

request! {
    /// Choice of tools to call.
    pub struct ToolChoice {
        /// `none`, `auto`, `required`, a tool of `tools`, or a list of allowed tools.
        tool_choice: Any as {
            "anyOf": [{ "enum": ["none", "auto", "required"] }, { "type": "object", "required": ["type"] }],
        },
        parallel_tool_calls: Bool,
    }
}

request! {
    /// Tools of OpenAI's chat completions.
    pub struct ChatTools {
        ..Tools,
        ..ToolChoice,
        /// Not supported: use `tools`.
        functions: Any as { "enum": ["none"] },
        /// Not supported: use `tool_choice`.
        function_call: Any as { "enum": ["none"] },
    }
}

request! {
    /// Choice of tools to call, in Anthropic's format.
    pub struct MessagesToolChoice {
        r#type: Text as { "enum": ["auto", "any", "tool", "none"] },
        disable_parallel_tool_use: Bool,
    }
}

request! {
    /// Tools of Anthropic's messages API.
    pub struct MessagesTools {
        /// Only tools that the client runs; others are refused.
        tools: List<MessagesTool>(TOOLS),
        tool_choice: Object<MessagesToolChoice> as {
            "required": ["type"], "properties": { "name": { "type": ["string", "null"] } },
        },
    }
}

/// Tools that a message may call.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolConfig {
    /// The tools.
    pub tools: Vec<Tool>,
    /// Choice of the tools that must be called.
    pub choice: Choice,
    /// True if a message may contain several calls.
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
    pub fn chat(fields: &Fields<'_, ChatTools>) -> Result<Self, ApiError> {
        for (old, value) in [("functions", fields.functions()?), ("function_call", fields.function_call()?)] {
            if value.is_some_and(|value| value.as_str() != Some("none")) {
                let message = format!("`{old}` is not supported: use `tools` and `tool_choice`");
                return Err(ApiError::unsupported(old).with(message));
            }
        }
        Self::plain(&fields.part())?.chosen(&fields.part(), is_named)
    }

    /// Tools of Anthropic's messages API: `{"name": …, "input_schema": {…}}`.
    ///
    /// # Errors
    /// 400 that names the field, also for tools that Anthropic's servers or clients define.
    pub fn messages(fields: &Fields<'_, MessagesTools>) -> Result<Self, ApiError> {
        let mut tools = tools(fields.tools()?, |tool: Fields<'_, MessagesTool>| {
            kind(tool.path("type"), tool.r#type()?, "custom")?;
            declared(&tool.part(), tool.path("input_schema"), tool.input_schema()?)
        })?;
        let Some(choice) = fields.tool_choice()? else {
            return Ok(Self { tools, ..Self::default() });
        };
        let word = choice.r#type()?;
        let wanted = chosen(fields.path("tool_choice"), &choice.value(), word, &mut tools, is_named)?;
        let single = choice.disable_parallel_tool_use()?.unwrap_or(false);
        Ok(Self { tools, choice: wanted, parallel: !single })
    }

    /// Tools in OpenAI's format, without a choice.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn plain(fields: &Fields<'_, Tools>) -> Result<Self, ApiError> {
        let tools = tools(fields.tools()?, |tool: Fields<'_, ChatTool>| {
            kind(tool.path("type"), tool.r#type()?, "function")?;
            function(&tool.function()?)
        });
        Ok(Self { tools: tools?, ..Self::default() })
    }

    /// Adds OpenAI's `tool_choice` and `parallel_tool_calls`. `is` returns true for the tool that an object
    /// of `tool_choice` names.
    ///
    /// # Errors
    /// 400 that names the field.
    pub fn chosen(
        mut self,
        fields: &Fields<'_, ToolChoice>,
        is: impl Fn(&Value, &Tool) -> bool,
    ) -> Result<Self, ApiError> {
        if let Some(choice) = fields.tool_choice()? {
            let word = choice.as_str().or_else(|| choice.get("type")?.as_str());
            self.choice = chosen(fields.path("tool_choice"), choice, word, &mut self.tools, is)?;
        }
        self.parallel = fields.parallel_tool_calls()?.unwrap_or(true);
        Ok(self)
    }
}

/// The tools of a request, each read by `read`.
fn tools<'v, R>(
    list: Option<Entries<'v, R>>,
    read: impl Fn(Fields<'v, R>) -> Result<Tool, ApiError>,
) -> Result<Vec<Tool>, ApiError> {
    list.unwrap_or_default().iter().map(|tool| read(tool?)).collect()
}

/// Refuses tools that the servers of their API run, or whose schemas only its models know.
fn kind(name: String, kind: Option<&str>, known: &str) -> Result<(), ApiError> {
    let Some(other) = kind.filter(|kind| *kind != known) else { return Ok(()) };
    let shown: String = other.escape_debug().take(80).collect();
    let message = match other {
        "custom" => format!(
            "`{name}`: tools of the type `custom` are supported by /v1/responses; here want `{known}`, with \
             the input as an argument"
        ),
        _ => format!(
            "`{name}`: this server does not run tools of the type `{shown}`: want `{known}`, which the \
             client runs; switch the others off in the client"
        ),
    };
    Err(ApiError::unsupported(name).with(message))
}

/// Reads the name of a tool.
///
/// # Errors
/// 400 for a missing name, or one that models may not write correctly.
pub fn name<'v>(function: &Fields<'v, Declared>) -> Result<&'v str, ApiError> {
    let name = function.name()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    match (1..=NAME).contains(&name.len()) && name.chars().all(is_plain) {
        true => Ok(name),
        false => Err(no_plain_name(function.path("name"), name)),
    }
}

fn no_name(path: String) -> ApiError {
    no_plain_name(path, "")
}

fn no_plain_name(path: String, name: &str) -> ApiError {
    ApiError::field(path, &format!("1 to {NAME} letters, digits, `_`, `-` and `.`"), &name.into())
}

/// Reads a function.
///
/// # Errors
/// 400 that names the field.
pub fn function(fields: &Fields<'_, Function>) -> Result<Tool, ApiError> {
    declared(&fields.part(), fields.path("parameters"), fields.parameters()?)
}

/// Reads a tool's name and description, and its parameters, which are at `path`.
///
/// # Errors
/// 400 that names the field.
fn declared(function: &Fields<'_, Declared>, path: String, given: Option<&Value>) -> Result<Tool, ApiError> {
    let name = name(function)?;
    let mut parameters = match given {
        // Some languages encode an empty object as an empty list.
        Some(Value::Array(list)) if list.is_empty() => json!({}),
        None => json!({}),
        Some(schema @ Value::Object(_)) => present(schema.clone()),
        Some(other) => return Err(ApiError::field(path, "an object", other)),
    };
    // Without a schema, or with `properties` that are null, there are no parameters.
    let has_none = given.and_then(|schema| schema.get("properties")) == Some(&Value::Null);
    if has_none || parameters.as_object().is_some_and(Map::is_empty) {
        parameters["type"] = json!("object");
        parameters["properties"] = json!({});
    }
    Ok(Tool {
        name: name.to_owned(),
        description: function.description()?.map(str::to_owned),
        parameters,
        shown: None,
        strict: function.strict()?.unwrap_or(false),
    })
}

/// True if `asked`, an object of `tool_choice`, names the tool.
fn is_named(asked: &Value, tool: &Tool) -> bool {
    asked.get("function").unwrap_or(asked).get("name").and_then(Value::as_str) == Some(tool.name.as_str())
}

/// Reads the choice of tools: `word` of `value`, the `tool_choice` at `path`. Removes tools that are not
/// allowed.
fn chosen(
    path: String,
    value: &Value,
    word: Option<&str>,
    tools: &mut Vec<Tool>,
    is: impl Fn(&Value, &Tool) -> bool,
) -> Result<Choice, ApiError> {
    const WANT: &str = "none, auto, required, or a tool of `tools`";
    let wrong = || ApiError::field(&path, WANT, value);
    let choice = match word.ok_or_else(wrong)? {
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

    fn fields<R>(value: &Value) -> Fields<'_, R> {
        Fields::of(value.as_object().unwrap())
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
        let chat = ToolConfig::chat(&fields(&chat)).unwrap();
        assert_eq!((chat.choice.clone(), chat.parallel), (Choice::Named("f".into()), false));
        assert_eq!(ToolConfig::messages(&fields(&messages)).unwrap(), chat);
        assert_eq!(ToolConfig::messages(&fields(&json!({}))).unwrap(), ToolConfig::default());
        let ollama =
            json!({ "tools": [{ "type": "function", "function": { "name": "f", "parameters": schema } }] });
        assert_eq!(ToolConfig::plain(&fields(&ollama)).unwrap().tools, chat.tools);
    }

    #[test]
    fn tools_without_parameters_have_an_empty_object() {
        let empty = json!({ "type": "object", "properties": {} });
        let null = json!({ "type": "object", "properties": null });
        for schema in [json!(null), json!({}), json!([]), json!({ "type": null }), null, empty.clone()] {
            let function = json!({ "name": "f", "parameters": schema });
            let chat = json!({ "tools": [{ "type": "function", "function": function }] });
            let messages = json!({ "tools": [{ "name": "f", "input_schema": schema }] });
            for read in [ToolConfig::chat(&fields(&chat)), ToolConfig::messages(&fields(&messages))] {
                assert_eq!(read.unwrap().tools[0].parameters, empty, "{schema}");
            }
        }
        let omitted = json!({ "tools": [{ "name": "f" }] });
        assert_eq!(ToolConfig::messages(&fields(&omitted)).unwrap().tools[0].parameters, empty);
        // Any object is allowed where the schema says so.
        let open = json!({ "tools": [{ "name": "f", "input_schema": { "type": "object" } }] });
        let open = ToolConfig::messages(&fields(&open)).unwrap();
        assert_eq!(open.tools[0].parameters, json!({ "type": "object" }));
    }

    #[test]
    fn what_cannot_be_offered_is_named() {
        let one = |kind: &str| json!({ "tools": [{ "type": kind, "name": "f" }] });
        let hosted = [
            ToolConfig::messages(&fields(&one("web_search_20250305"))),
            ToolConfig::chat(&fields(&one("custom"))),
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
            let refused = ToolConfig::messages(&fields(&json!({ "tools": [], "tool_choice": choice })));
            assert_eq!(refused.unwrap_err().param.as_deref(), Some("tool_choice"), "{choice}");
        }
    }
}
