//! Histories of agents: system messages that a template refuses, and results of tools of any kind.

use serde_json::{Value, json};

use super::client::{TestServer, engine};

/// A template without a system role, whose turns alternate, as Gemma 2's.
const NO_SYSTEM: &str = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}\
     {% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}\
     {{ raise_exception('roles alternate') }}{% endif %}<{{ m.role[:1] }}>{{ m.content }}{% endfor %}<a>";

#[test]
fn system_reaches_templates_without_it_in_every_api() {
    let server = TestServer::start(|options| options.template = Some(NO_SYSTEM.into()));
    let system = json!({ "role": "system", "content": [{ "type": "text", "text": "Be kind." }] });
    let user = json!({ "role": "user", "content": "Hi" });
    let chat = json!({ "max_tokens": 1, "messages": [system, user] });
    let prompt = |body: &Value| server.post("/apply-template", body).ok()["prompt"].clone();
    assert_eq!(prompt(&chat), "<u>Be kind.\n\nHi<a>");
    let developer = json!({ "role": "developer", "content": "Be brief." });
    let two = json!({ "messages": [{ "role": "system", "content": null }, system, developer, user, user] });
    assert_eq!(prompt(&two), "<u>Be kind.\n\nBe brief.\n\nHi\n\nHi<a>");
    // The grammar of the tools is the generic one, and the tools are in the merged message.
    let mut with_tool = chat.clone();
    with_tool["tools"] = json!([{ "type": "function", "function": { "name": "f" } }]);
    assert!(prompt(&with_tool).as_str().unwrap().starts_with("<u>Be kind.\n\nThese tools"));

    let count = |path: &str, body: Value, name: &str| server.post(path, &body).ok()[name].clone();
    let wanted = count("/tokenize", chat.clone(), "count");
    let counts = [
        count("/v1/chat/completions/input_tokens", chat, "input_tokens"),
        count(
            "/v1/messages/count_tokens",
            json!({ "system": "Be kind.", "messages": [user] }),
            "input_tokens",
        ),
        count(
            "/v1/responses/input_tokens",
            json!({ "instructions": "Be kind.", "input": "Hi" }),
            "input_tokens",
        ),
        count(
            "/api/chat",
            json!({ "stream": false, "options": { "num_predict": 1 }, "messages": [system, user] }),
            "prompt_eval_count",
        ),
        count(
            "/api/generate",
            json!({ "stream": false, "options": { "num_predict": 1 }, "system": "Be kind.", "prompt": "Hi" }),
            "prompt_eval_count",
        ),
    ];
    assert!(counts.iter().all(|count| *count == wanted), "{counts:?}, want {wanted}");
}

#[test]
fn every_api_takes_any_result_of_a_tool() {
    let server = TestServer::with_engine(engine(1024), |options| options.template = Some("chatml".into()));
    let call = json!({ "id": "t", "type": "function", "function": { "name": "f", "arguments": "" } });
    let results = [
        (json!(null), ""),
        (json!(4), "4"),
        (json!({ "a": [1] }), r#"{"a":[1]}"#),
        (json!([{ "type": "tool_reference", "tool_name": "mcp__sky" }]), "mcp__sky"),
        (
            json!([{ "type": "search_result", "source": "s", "title": "t",
                "content": [{ "type": "text", "text": "Owls." }] }]),
            "t\ns\nOwls.",
        ),
        (
            json!([{ "type": "document", "source": { "type": "base64", "data": "AA==" } }]),
            "[There is a file here, which this model cannot read.]",
        ),
        (
            json!([{ "type": "hologram" }]),
            "[There is a part of type `hologram` here, which this model cannot read.]",
        ),
    ];
    let count = |path: &str, body: Value, name: &str| server.post(path, &body).ok()[name].clone();
    for (result, want) in results {
        let said = json!({ "role": "tool", "tool_call_id": "t", "name": "f", "content": result });
        let asked = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
        let talk = json!([{ "role": "user", "content": "a" }, asked, said]);
        let chat = json!({ "messages": talk });
        let prompt = server.post("/apply-template", &chat).ok()["prompt"].clone();
        let shown = format!("{{\"tool_response\": {}, \"name\": \"f\"}}<|im_end|>", json!(want));
        assert!(prompt.as_str().unwrap().contains(&shown), "{prompt}");
        let wanted = count("/v1/chat/completions/input_tokens", chat, "input_tokens");
        let messages = json!({ "messages": [
            { "role": "user", "content": "a" },
            { "role": "assistant", "content": [{ "type": "tool_use", "id": "t", "name": "f" }] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": result }] },
        ] });
        assert_eq!(count("/v1/messages/count_tokens", messages, "input_tokens"), wanted, "{result}");
        let responses = json!({ "input": [
            { "role": "user", "content": "a" },
            { "type": "function_call", "call_id": "t", "name": "f", "arguments": "" },
            { "type": "function_call_output", "call_id": "t", "output": result },
        ] });
        assert_eq!(count("/v1/responses/input_tokens", responses, "input_tokens"), wanted, "{result}");
        let ollama = json!({ "stream": false, "options": { "num_predict": 1 }, "messages": talk });
        assert_eq!(count("/api/chat", ollama, "prompt_eval_count"), wanted, "{result}");
    }
    // Without any content; and null in other roles.
    for talk in [
        json!([{ "role": "user", "content": "a" }, { "role": "tool", "tool_call_id": "t" }]),
        json!([{ "role": "user", "content": null }, { "role": "assistant", "content": null },
            { "role": "user", "content": "a" }]),
    ] {
        server.post("/apply-template", &json!({ "messages": talk })).ok();
    }
    let user = json!({ "role": "user", "content": "a" });
    let null = json!({ "messages": [user, { "role": "assistant", "content": null }, user] });
    server.post("/v1/messages/count_tokens", &null).ok();
}
