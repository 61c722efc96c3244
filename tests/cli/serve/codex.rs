//! Shortened requests of Codex to `/v1/responses`: tools in namespaces, tools that OpenAI's servers run, and
//! items of both. Recorded from version 0.169.0 with one MCP server. Also custom tools, which Codex has for
//! some models.

use serde_json::{Value, json};

use super::client::{DESCRIPTION, TestServer, engine};
use super::dialects::{events, fits_schema, no_thoughts, schema, with};

fn function(name: &str) -> Value {
    json!({ "type": "function", "name": name, "description": "Does it.", "strict": false,
        "parameters": schema() })
}

/// The tools of Codex: functions, two namespaces, and a search that OpenAI runs.
fn tools() -> Value {
    json!([
        function("exec_command"),
        { "type": "namespace", "name": "multi_agent_v1", "description": "For workers.",
            "tools": [function("close_agent"), function("spawn_agent")] },
        { "type": "namespace", "name": "mcp__toy", "description": "Tools of toy.",
            "tools": [function("echo")] },
        { "type": "web_search", "external_web_access": false },
    ])
}

fn message(role: &str, text: &str) -> Value {
    json!({ "type": "message", "id": "msg_1", "role": role,
        "content": [{ "type": "input_text", "text": text }] })
}

/// A conversation in which all kinds of tools have been called.
fn input() -> Value {
    let call = json!({ "type": "function_call", "status": "completed", "id": "fc_1", "call_id": "call_1",
        "name": "close_agent", "namespace": "multi_agent_v1", "arguments": "{\"c\":\"x\"}" });
    let answer =
        json!({ "type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "closed" });
    json!([
        message("developer", "Write code."),
        message("user", "The folder is empty."),
        message("user", "Go."),
        { "type": "web_search_call", "id": "ws_1", "status": "completed",
            "action": { "type": "search", "query": "how" } },
        call,
        answer,
    ])
}

fn request() -> Value {
    json!({
        "model": "any", "stream": true, "input": input(), "tools": tools(), "tool_choice": "auto",
        "parallel_tool_calls": true, "reasoning": { "summary": "auto" }, "store": false,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k",
        "client_metadata": { "thread_id": "k" }, "max_output_tokens": 200, "seed": 3,
    })
}

#[test]
fn recorded_codex_requests_are_served() {
    let server = TestServer::with_engine(engine(2048), |_| ());
    let body = request();
    DESCRIPTION.check_request("ResponsesRequest", &body);
    let streamed = events(&server.post("/v1/responses", &with(&body, json!({ "max_output_tokens": 4 }))));
    let last = &streamed[streamed.len() - 1]["response"];
    assert_eq!((&last["error"], &last["tools"]), (&Value::Null, &body["tools"]));

    // A call has its namespace, and its name in the namespace.
    for (namespace, name) in [("multi_agent_v1", "spawn_agent"), ("mcp__toy", "echo")] {
        let choice = json!({ "type": "function", "namespace": namespace, "name": name });
        let one = json!({ "tool_choice": choice, "parallel_tool_calls": false,
            "logit_bias": no_thoughts(&server) });
        let body = with(&body, one);
        let plain = server.post("/v1/responses", &with(&body, json!({ "stream": false }))).ok();
        let streamed = events(&server.post("/v1/responses", &body));
        let of_kind =
            |kind: &str| streamed.iter().find(|event| event["type"] == format!("response.{kind}")).unwrap();
        let (begun, done) = (&of_kind("output_item.added")["item"], &of_kind("output_item.done")["item"]);
        for item in [&plain["output"][0], begun, done] {
            assert_eq!((&item["type"], &item["name"]), (&json!("function_call"), &json!(name)), "{item}");
            assert_eq!(item["namespace"], namespace);
        }
        assert_eq!(of_kind("function_call_arguments.done")["name"], name);
        assert_eq!(done["arguments"], plain["output"][0]["arguments"]);
        assert!(fits_schema(&serde_json::from_str(done["arguments"].as_str().unwrap()).unwrap()), "{done}");
    }
}

/// The prompt is the same as with plain functions whose names include the namespace.
#[test]
fn namespaces_are_part_of_names_in_the_prompt() {
    let server = TestServer::with_engine(engine(2048), |options| options.template = Some("chatml".into()));
    let count = |body: &Value| server.post("/v1/responses/input_tokens", body).ok()["input_tokens"].clone();
    let wanted = count(&request());
    let described = |name: &str, text: &str| with(&function(name), json!({ "description": text }));
    let functions = json!([
        function("exec_command"),
        described("multi_agent_v1__close_agent", "multi_agent_v1: For workers.\n\nDoes it."),
        function("multi_agent_v1__spawn_agent"),
        described("mcp__toy__echo", "mcp__toy: Tools of toy.\n\nDoes it."),
    ]);
    let mut items = input();
    items.as_array_mut().unwrap().remove(3);
    items[3]["name"] = "multi_agent_v1__close_agent".into();
    items[3].as_object_mut().unwrap().remove("namespace");
    let body = with(&request(), json!({ "tools": functions, "input": items }));
    assert_eq!(count(&body), wanted);
    // The prompt without tools is shorter.
    assert!(count(&with(&body, json!({ "tools": [] }))).as_u64() < wanted.as_u64());
}

#[test]
fn custom_tools_are_called_with_text() {
    let server = TestServer::with_engine(engine(2048), |options| options.template = Some("chatml".into()));
    // A random model does not end a text. With these tokens made likely it does so at once.
    let id = |text: &str| server.post("/tokenize", &json!({ "content": text })).ok()["tokens"][0].to_string();
    let mut bias = no_thoughts(&server);
    ["\"", "]", "}"].iter().for_each(|text| bias[id(text)] = json!(100));
    let grammar = json!({ "type": "grammar", "syntax": "lark", "definition": "start: /a+/" });
    let tool = json!({ "type": "custom", "name": "patch", "description": "Patches.", "format": grammar });
    let body = json!({
        "model": "any", "input": "Go.", "tools": [tool], "tool_choice": { "type": "custom", "name": "patch" },
        "parallel_tool_calls": false, "max_output_tokens": 120, "temperature": 0, "logit_bias": bias,
    });
    DESCRIPTION.check_request("ResponsesRequest", &body);
    let plain = server.post("/v1/responses", &body).ok();
    let call = &plain["output"][0];
    let of_call = (&plain["status"], &call["type"], &call["status"], &call["name"]);
    assert_eq!(
        of_call,
        (&json!("completed"), &json!("custom_tool_call"), &json!("completed"), &json!("patch")),
        "{plain}"
    );
    // Its grammar is enforced.
    let input = call["input"].as_str().unwrap();
    assert!(!input.is_empty() && input.bytes().all(|byte| byte == b'a'), "{call}");
    assert!(call["arguments"].is_null() && call["namespace"].is_null(), "{call}");

    let streamed = events(&server.post("/v1/responses", &with(&body, json!({ "stream": true }))));
    let mut kinds: Vec<&str> = streamed.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.retain(|kind| kind.contains("tool_call") || kind.contains("item"));
    let wanted = [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ];
    assert_eq!(kinds, wanted);
    let of_kind = |kind: &str| streamed.iter().find(|event| event["type"] == kind).unwrap();
    let done = &of_kind(wanted[3])["item"];
    for (event, field) in [(wanted[1], "delta"), (wanted[2], "input")] {
        assert_eq!((&of_kind(event)[field], &of_kind(event)["item_id"]), (&call["input"], &done["id"]));
    }
    assert_eq!((&done["input"], &done["type"]), (&call["input"], &call["type"]));

    // The next request has the call as it was sent, and the output of the tool.
    let answer = json!({ "type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done" });
    let turn = json!({ "input": [message("user", "Go."), call, answer], "tool_choice": "none",
        "max_output_tokens": 1 });
    server.post("/v1/responses", &with(&body, turn)).ok();
}

#[test]
fn hosted_tools_cannot_be_chosen() {
    let server = TestServer::start(|_| ());
    let body = json!({ "input": "Go.", "max_output_tokens": 1, "tools": [{ "type": "web_search" }] });
    server.post("/v1/responses", &body).ok();
    for choice in [json!({ "type": "web_search_preview" }), json!("required")] {
        let refused = server.post("/v1/responses", &with(&body, json!({ "tool_choice": choice })));
        let error = refused.error(400);
        assert_eq!(error["param"], "tool_choice", "{error}");
        assert!(error["message"].as_str().unwrap().contains("runs no tools"), "{error}");
    }
}
