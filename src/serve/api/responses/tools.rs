//! The tools of a request as functions, the only kind that a model knows: a tool of a namespace is called
//! `NAMESPACE__NAME`, and a custom tool has one argument, its input. [`Names`] maps calls back to the
//! client's names. The types of tools are those of OpenAI's API specification.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::error::ApiError;
use crate::fields::{Fields, request};
use crate::kinds::{Any, List, Object, Text};
use crate::tool_config::{Declared, Function, TOOLS, ToolChoice, ToolConfig, function, name};
use sterna_grammar::lark_to_regex;
use sterna_tools::Tool;

/// Types of tools that OpenAI's servers run, or whose arguments only its models know.
const HOSTED: &[&str] = &[
    "apply_patch",
    "code_interpreter",
    "computer",
    "computer_use",
    "computer_use_preview",
    "file_search",
    "image_generation",
    "local_shell",
    "mcp",
    "programmatic_tool_calling",
    "shell",
    "tool_search",
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
];
request! {
    /// Tools of OpenAI's responses API, and the choice among them.
    pub struct ResponsesTools {
        ..ItemTools,
        ..ToolChoice,
    }
}

request! {
    /// Tools of OpenAI's responses API.
    pub struct ItemTools {
        /// Tools that OpenAI's servers run are left out.
        tools: List<ResponsesTool>(TOOLS),
    }
}

request! {
    /// A tool of OpenAI's responses API.
    pub enum ResponsesTool {
        ClientTool,
        Namespace,
        HostedTool,
    }
}

request! {
    /// A tool that the client runs.
    pub struct ClientTool of { "enum": ["function", "custom", null] } {
        ..Function,
        /// Grammar of a custom tool: the model is shown it, and constrained to it if it is a regex.
        format: Object<CustomFormat>,
    }
}

request! {
    /// A grammar for the input of a custom tool.
    pub struct CustomFormat {
        /// `lark` or `regex`.
        syntax: Text,
        definition: Text,
    }
}

request! {
    /// Tools with a common name; namespaces cannot be nested.
    pub struct Namespace of { "const": "namespace" } {
        ..Declared,
        ..ItemTools,
    }
}

request! {
    /// A tool that OpenAI's servers run, which is left out.
    pub struct HostedTool of { "enum": HOSTED } {
        name: Any,
        server_label: Any,
    }
}

/// Types of items that add tools.
const WITH_TOOLS: &[&str] = &["additional_tools", "tool_search_output"];

/// The name under which the model knows a tool.
pub fn flat(namespace: Option<&str>, name: &str) -> String {
    match namespace.filter(|namespace| !namespace.is_empty()) {
        Some(namespace) => format!("{namespace}__{name}"),
        None => name.to_owned(),
    }
}

/// The arguments of a call of a custom tool.
pub fn with_input(input: &str) -> String {
    json!({ "input": input }).to_string()
}

/// A tool as the client knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The enclosing namespace.
    pub namespace: Option<String>,
    /// Its name within the namespace.
    pub name: String,
    /// True if its calls have a text instead of arguments.
    pub is_custom: bool,
}

/// The client's names of the tools, by the model's names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names(HashMap<String, Origin>);

impl Names {
    /// The tool that the model calls `name`.
    pub fn origin(&self, name: &str) -> Origin {
        let plain = || Origin { namespace: None, name: name.to_owned(), is_custom: false };
        self.0.get(name).cloned().unwrap_or_else(plain)
    }

    /// True if `asked`, an object of `tool_choice`, names the tool or its namespace.
    fn are(&self, asked: &Value, tool: &Tool) -> bool {
        let text = |name: &str| asked.get("function").unwrap_or(asked).get(name).and_then(Value::as_str);
        let Origin { namespace, name, .. } = self.origin(&tool.name);
        match asked.get("type").and_then(Value::as_str) {
            Some("namespace") => namespace.is_some() && namespace.as_deref() == text("name"),
            _ if text("namespace").is_none() && text("name") == Some(tool.name.as_str()) => true,
            _ => (text("namespace"), text("name")) == (namespace.as_deref(), Some(name.as_str())),
        }
    }
}

/// Reads the tools of `tools`, and those that items of the `input` add.
///
/// # Errors
/// 400 that names the field, also if `tool_choice` requires a tool that this server does not run.
pub fn read(
    fields: &Fields<'_, ResponsesTools>,
    input: Option<&Value>,
) -> Result<(ToolConfig, Names), ApiError> {
    let mut list = Offered::default();
    list.add_all(&fields.part(), None)?;
    if let Some(Value::Array(items)) = input {
        for (at, item) in items.iter().enumerate() {
            if WITH_TOOLS.iter().any(|kind| item["type"] == *kind) {
                list.add_all(&Fields::inside(format!("input[{at}]"), item)?, None)?;
            }
        }
    }
    let Offered { tools, names, left_out } = list;
    if tools.len() > TOOLS {
        let want = format!("at most {TOOLS}, with those of namespaces and of the input");
        return Err(ApiError::field("tools", &want, &tools.len().into()));
    }
    if !left_out.is_empty() {
        tracing::warn!("`tools`: left out, because this server does not run them: {}", left_out.join(", "));
    }
    let choice = fields.part::<ToolChoice>().tool_choice()?;
    let word = choice.and_then(|choice| choice.as_str().or_else(|| choice["type"].as_str()));
    let wants_hosted = word.is_some_and(|word| HOSTED.contains(&word));
    if wants_hosted || word == Some("required") && tools.is_empty() && !left_out.is_empty() {
        let message = "`tool_choice`: this server runs no tools: want a tool of the types `function` and \
                       `custom`, which the client runs, or none, or auto";
        return Err(ApiError::unsupported("tool_choice").with(message));
    }
    let tool_config = ToolConfig { tools, ..ToolConfig::default() };
    Ok((tool_config.chosen(&fields.part(), |asked, tool| names.are(asked, tool))?, names))
}

/// Tools that have been read so far.
#[derive(Debug, Default)]
struct Offered {
    tools: Vec<Tool>,
    names: Names,
    /// Types and names of tools that are left out.
    left_out: Vec<String>,
}

impl Offered {
    fn add_all(&mut self, holder: &Fields<'_, ItemTools>, namespace: Option<&str>) -> Result<(), ApiError> {
        for tool in holder.tools()?.unwrap_or_default().iter() {
            self.add(&tool?, namespace)?;
        }
        Ok(())
    }

    fn add(&mut self, tool: &Fields<'_, ResponsesTool>, namespace: Option<&str>) -> Result<(), ApiError> {
        let own = tool.part::<ClientTool>();
        match tool.r#type()?.unwrap_or("function") {
            "function" => self.offer(&own.part(), namespace, function(&own.part())?, false),
            "custom" => self.offer(&own.part(), namespace, custom(&own)?, true),
            "namespace" if namespace.is_none() => {
                let holder = tool.part::<Namespace>();
                let declared = holder.part::<Declared>();
                let namespace = name(&declared)?;
                let first = self.tools.len();
                self.add_all(&holder.part(), Some(namespace))?;
                if let (Some(about), Some(first)) = (declared.description()?, self.tools.get_mut(first)) {
                    let own = first.description.as_deref().unwrap_or_default();
                    first.description = Some(format!("{namespace}: {about}\n\n{own}").trim_end().to_owned());
                }
                Ok(())
            }
            kind if HOSTED.contains(&kind) => {
                let tool = tool.part::<HostedTool>();
                let name = tool.name()?.or(tool.server_label()?).and_then(Value::as_str);
                let shown =
                    |name: &str| format!("{kind} {}", name.escape_debug().take(80).collect::<String>());
                self.left_out.push(name.map_or_else(|| kind.to_owned(), shown));
                Ok(())
            }
            other => {
                let want = "`function`, `custom`, `namespace`, or the type of one of OpenAI's own tools";
                Err(ApiError::field(tool.path("type"), want, &other.into()))
            }
        }
    }

    /// Adds `as_function`. A tool that was already added, for instance by a search, is skipped.
    fn offer(
        &mut self,
        tool: &Fields<'_, Function>,
        namespace: Option<&str>,
        as_function: Tool,
        is_custom: bool,
    ) -> Result<(), ApiError> {
        let name = flat(namespace, &as_function.name);
        let origin = Origin { namespace: namespace.map(str::to_owned), name: as_function.name, is_custom };
        if !self.tools.iter().any(|known| known.name == name) {
            self.tools.push(Tool { name: name.clone(), ..as_function });
            self.names.0.insert(name, origin);
        } else if self.names.origin(&name) != origin {
            let message = format!("`{}`: the model knows another tool as `{name}`", tool.path("name"));
            return Err(ApiError::in_field(tool.path("name"), message));
        }
        Ok(())
    }
}

/// A custom tool, whose input is a text. A grammar of the input is shown to the model, and enforced if it can
/// be expressed as a regular expression.
fn custom(tool: &Fields<'_, ClientTool>) -> Result<Tool, ApiError> {
    let mut function = function(&tool.part())?;
    let format = tool.format()?.unwrap_or_default();
    function.parameters = json!({
        "type": "object", "properties": { "input": { "type": "string" } }, "required": ["input"],
        "additionalProperties": false,
    });
    if let Some(grammar) = format.definition()? {
        let syntax = format.syntax()?.unwrap_or("lark");
        let regex = match syntax {
            "regex" => Ok(grammar.to_owned()),
            "lark" => lark_to_regex(grammar).map_err(|err| err.to_string()),
            other => Err(format!("`{other}` is neither `regex` nor `lark`")),
        };
        match regex {
            Ok(regex) => {
                function.shown = Some(function.parameters.clone());
                function.parameters["properties"]["input"]["pattern"] = json!(format!("^(?:{regex})$"));
            }
            Err(why) => tracing::warn!(
                "`{}`: the model is shown this grammar, but it is not enforced: {why}",
                format.path("definition")
            ),
        }
        let own = function.description.unwrap_or_default();
        let all = format!("{own}\n\nThe grammar of `input` ({syntax}):\n{grammar}");
        function.description = Some(all.trim().to_owned());
    }
    Ok(function)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sterna_tools::Choice;

    fn of(request: Value) -> Result<(ToolConfig, Names), ApiError> {
        read(&Fields::of(request.as_object().unwrap()), request.get("input"))
    }

    fn function(name: &str) -> Value {
        json!({ "type": "function", "name": name })
    }

    fn called(tool_config: &ToolConfig) -> Vec<&str> {
        tool_config.tools.iter().map(|tool| tool.name.as_str()).collect()
    }

    /// Tools of all kinds: functions, a namespace, a custom tool, and one that OpenAI's servers run.
    fn tools() -> Value {
        let patch = json!({ "type": "custom", "name": "patch", "description": "Patches.",
            "format": { "type": "grammar", "syntax": "regex", "definition": "a+" } });
        json!([function("look"), { "type": "namespace", "name": "crm", "description": "Customers.",
            "tools": [function("look"), patch] }, { "type": "web_search" }, patch])
    }

    #[test]
    fn tools_are_functions_to_the_model_and_have_their_own_names_for_the_client() {
        let (tool_config, names) = of(json!({ "tools": tools() })).unwrap();
        assert_eq!(called(&tool_config), ["look", "crm__look", "crm__patch", "patch"]);
        let about = |at: usize| tool_config.tools[at].description.as_deref();
        assert_eq!(about(1), Some("crm: Customers."));
        assert_eq!(about(3), Some("Patches.\n\nThe grammar of `input` (regex):\na+"));
        assert_eq!(tool_config.tools[2].parameters["required"], json!(["input"]));
        let input = &tool_config.tools[2].parameters["properties"]["input"];
        assert_eq!(input, &json!({ "type": "string", "pattern": "^(?:a+)$" }));
        // The description already contains it.
        let shown = tool_config.tools[2].to_json();
        let of_input = "/function/parameters/properties/input";
        assert_eq!(shown.pointer(of_input), Some(&json!({ "type": "string" })));
        let origin = |namespace: Option<&str>, name: &str, is_custom| Origin {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
            is_custom,
        };
        assert_eq!(names.origin("look"), origin(None, "look", false));
        assert_eq!(names.origin("crm__look"), origin(Some("crm"), "look", false));
        assert_eq!(names.origin("crm__patch"), origin(Some("crm"), "patch", true));
        assert_eq!(names.origin("patch"), origin(None, "patch", true));
    }

    #[test]
    fn lark_is_enforced_as_a_regular_expression_if_it_can_be_one() {
        let of_lark = |lark: &str| {
            let format = json!({ "type": "grammar", "syntax": "lark", "definition": lark });
            let tools = json!([{ "type": "custom", "name": "f", "format": format }]);
            let (tool_config, _) = of(json!({ "tools": tools })).unwrap();
            tool_config.tools[0].parameters["properties"]["input"]["pattern"].clone()
        };
        assert_eq!(of_lark("start: a+\na: /x/ | \"y\""), json!("^(?:(?:(?:(?:x)|(?:y)))+)$"));
        assert_eq!(of_lark("start: \"(\" start? \")\""), Value::Null);
    }

    #[test]
    fn every_tool_that_is_hosted_is_left_out() {
        for kind in HOSTED {
            let (tool_config, _) = of(json!({ "tools": [{ "type": kind }, function("f")] })).unwrap();
            assert_eq!(called(&tool_config), ["f"], "{kind}");
            for choice in [json!({ "type": kind }), json!("required")] {
                let refused = of(json!({ "tools": [{ "type": kind }], "tool_choice": choice })).unwrap_err();
                assert_eq!(refused.param.as_deref(), Some("tool_choice"), "{kind}");
                assert!(refused.message.contains("runs no tools"), "{}", refused.message);
            }
        }
    }

    #[test]
    fn tools_come_with_items_too() {
        let crm = json!({ "type": "namespace", "name": "crm", "tools": [function("look")] });
        let input = json!([{ "type": "additional_tools", "role": "developer", "tools": [function("f"), crm] },
            { "type": "tool_search_output", "call_id": "c", "tools": [function("f")] },
            { "type": "mcp_list_tools", "tools": [function("not this")] }]);
        let (tool_config, _) = of(json!({ "tools": [function("g")], "input": input })).unwrap();
        assert_eq!(called(&tool_config), ["g", "f", "crm__look"]);
    }

    #[test]
    fn a_choice_names_tools_as_the_client_does() {
        let chosen = |choice: Value| of(json!({ "tools": tools(), "tool_choice": choice }));
        for (choice, name) in [
            (function("look"), "look"),
            (json!({ "type": "function", "name": "look", "namespace": "crm" }), "crm__look"),
            (function("crm__look"), "crm__look"),
            (json!({ "type": "custom", "name": "patch" }), "patch"),
        ] {
            assert_eq!(chosen(choice).unwrap().0.choice, Choice::Named(name.into()));
        }
        let allowed =
            |tools: Value| chosen(json!({ "type": "allowed_tools", "mode": "required", "tools": tools }));
        let (tool_config, _) = allowed(json!([{ "type": "namespace", "name": "crm" }])).unwrap();
        assert_eq!(called(&tool_config), ["crm__look", "crm__patch"]);
        assert_eq!(tool_config.choice, Choice::Required);
        let (tool_config, _) = allowed(json!([function("look"), { "type": "web_search" }])).unwrap();
        assert_eq!(called(&tool_config), ["look"]);
        for choice in
            [function("g"), json!({ "type": "custom" }), json!({ "type": "namespace", "name": "crm" })]
        {
            assert_eq!(chosen(choice).unwrap_err().param.as_deref(), Some("tool_choice"));
        }
        assert_eq!(
            allowed(json!([{ "type": "web_search" }])).unwrap_err().param.as_deref(),
            Some("tool_choice")
        );
    }

    #[test]
    fn what_cannot_be_offered_is_named() {
        let within = |name: &str, tool: Value| json!({ "type": "namespace", "name": name, "tools": [tool] });
        for (tools, param) in [
            (json!([{ "type": "functoin", "name": "f" }]), "tools[0].type"),
            (json!([within("a b", function("f"))]), "tools[0].name"),
            (json!([within("a", function(""))]), "tools[0].tools[0].name"),
            (json!([within("a", within("b", function("f")))]), "tools[0].tools[0].type"),
            (json!([function("a__f"), within("a", function("f"))]), "tools[1].tools[0].name"),
            (json!([within("a", json!(0))]), "tools[0].tools[0]"),
        ] {
            assert_eq!(of(json!({ "tools": tools })).unwrap_err().param.as_deref(), Some(param), "{tools}");
        }
        let many = |namespace: &str| {
            let inner: Vec<Value> = (0..129).map(|at| function(&format!("f{at}"))).collect();
            json!({ "type": "namespace", "name": namespace, "tools": inner })
        };
        let refused = of(json!({ "tools": [many("a"), many("b")] })).unwrap_err();
        assert_eq!(refused.param.as_deref(), Some("tools"));
    }
}
