//! Tools, schemas and reasoning in Anthropic's messages, OpenAI's responses and ollama's chat. The model has
//! random weights, so only its grammar makes it write calls and JSON.

use serde_json::{Map, Value, json};

use super::client::{Answer, DESCRIPTION, TestServer, engine};

/// The tool `name` in the format of chat completions and ollama.
fn tool(name: &str) -> Value {
    let function = json!({ "name": name, "description": "Says it.", "parameters": schema() });
    json!({ "type": "function", "function": function })
}

/// `{"c": "x"}` or `{"c": "y"}`.
pub fn schema() -> Value {
    json!({ "type": "object", "properties": { "c": { "enum": ["x", "y"] } }, "required": ["c"] })
}

pub fn fits_schema(value: &Value) -> bool {
    *value == json!({ "c": "x" }) || *value == json!({ "c": "y" })
}

/// The tool `name` without the outer object, with its schema in the field `schema_name`.
fn flat(name: &str, schema_name: &str) -> Value {
    let mut flat = tool(name)["function"].take();
    let parameters = flat.as_object_mut().unwrap().remove("parameters").unwrap();
    flat[schema_name] = parameters;
    flat
}

pub fn with(body: &Value, more: Value) -> Value {
    let mut body = body.clone();
    let Value::Object(more) = more else { panic!("an object") };
    more.into_iter().for_each(|(name, value)| body[name] = value);
    body
}

/// A bias against `<`. Before a required call a model may think, and a random model would not stop.
pub fn no_thoughts(server: &TestServer) -> Value {
    let less = server.post("/tokenize", &json!({ "content": "<" })).ok()["tokens"][0].to_string();
    json!({ less: -100 })
}

/// Events of a stream with event names and without `[DONE]`.
pub fn events(answer: &Answer) -> Vec<Value> {
    let events: Vec<Value> = answer.data().iter().map(|data| serde_json::from_str(data).unwrap()).collect();
    let names = answer.text.lines().filter_map(|line| line.strip_prefix("event: "));
    assert!(names.eq(events.iter().map(|event| event["type"].as_str().unwrap())));
    events
}

fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn messages_api_calls_tools() {
    let server = TestServer::with_engine(engine(1024), |_| ());
    let body = json!({
        "model": "any", "max_tokens": 60, "seed": 3, "logit_bias": no_thoughts(&server),
        "messages": [{ "role": "user", "content": "Go." }],
        "tools": [flat("f", "input_schema"), flat("g", "input_schema")],
        "tool_choice": { "type": "tool", "name": "g" },
    });
    DESCRIPTION.check_request("MessagesRequest", &body);
    let plain = server.post("/v1/messages", &body).ok();
    assert_eq!((&plain["stop_reason"], &plain["content"][1]), (&json!("tool_use"), &Value::Null), "{plain}");
    let call = &plain["content"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("tool_use"), &json!("g")));
    assert!(fits_schema(&call["input"]), "{call}");

    let events = events(&server.post("/v1/messages", &with(&body, json!({ "stream": true }))));
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let begun = &events[1]["content_block"];
    assert_eq!((&begun["name"], &begun["input"]), (&json!("g"), &json!({})));
    let pieces: String = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&pieces).unwrap(), call["input"]);
    assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "tool_use");

    // Any tool, but only one call.
    let any = json!({ "tool_choice": { "type": "any", "disable_parallel_tool_use": true } });
    let any = server.post("/v1/messages", &with(&body, any)).ok();
    assert_eq!(any["content"].as_array().unwrap().len(), 1, "{any}");
    assert!(fits_schema(&any["content"][0]["input"]), "{any}");

    // An answer that is cut off within a call has no call.
    let short = server.post("/v1/messages", &with(&body, json!({ "max_tokens": 12 }))).ok();
    assert_eq!(
        (&short["stop_reason"], short["content"].to_string().contains("tool_use")),
        (&json!("max_tokens"), false)
    );

    // Tools are counted, unless none may be called.
    let count = |more: Value| {
        server.post("/v1/messages/count_tokens", &with(&body, more)).ok()["input_tokens"].as_u64().unwrap()
    };
    let none = count(json!({ "tool_choice": { "type": "none" } }));
    assert!(count(json!({})) > none + 20);
    assert_eq!(none, count(json!({ "tools": null, "tool_choice": null })));
}

#[test]
fn responses_api_calls_tools() {
    let server = TestServer::with_engine(engine(1024), |_| ());
    let body = json!({
        "model": "any", "max_output_tokens": 60, "seed": 3, "logit_bias": no_thoughts(&server),
        "input": "Go.", "store": true, "include": ["reasoning.encrypted_content"],
        "tools": [with(&flat("f", "parameters"), json!({ "type": "function" })),
            with(&flat("g", "parameters"), json!({ "type": "function", "strict": true }))],
        "tool_choice": { "type": "function", "name": "g" }, "parallel_tool_calls": false,
    });
    DESCRIPTION.check_request("ResponsesRequest", &body);
    let plain = server.post("/v1/responses", &body).ok();
    assert_eq!((&plain["status"], &plain["store"]), (&json!("completed"), &json!(false)), "{plain}");
    let call = &plain["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("g")));
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(fits_schema(&arguments), "{call}");
    assert_eq!((&plain["tools"], &plain["tool_choice"]), (&body["tools"], &body["tool_choice"]));

    let events = events(&server.post("/v1/responses", &with(&body, json!({ "stream": true }))));
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
    }
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    let wanted = [
        "created",
        "in_progress",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ];
    assert!(kinds.iter().map(|kind| kind.strip_prefix("response.").unwrap()).eq(wanted), "{kinds:?}");
    let (last, done) = (&events[events.len() - 1]["response"], &events[events.len() - 2]["item"]);
    assert_eq!(last["output"], json!([done]));
    let begun = &events[2]["item"];
    assert_eq!((&begun["status"], &begun["arguments"]), (&json!("in_progress"), &json!("")));
    for name in ["id", "call_id", "name"] {
        assert_eq!(begun[name], done[name]);
    }
    let deltas = events.iter().filter(|event| event["type"] == "response.function_call_arguments.delta");
    let pieces: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!((&done["arguments"], &call["arguments"]), (&json!(pieces), &json!(pieces)));

    let short = server.post("/v1/responses", &with(&body, json!({ "max_output_tokens": 12 }))).ok();
    assert_eq!(short["incomplete_details"]["reason"], "max_output_tokens");
    assert!(short["output"].as_array().unwrap().iter().all(|item| item["status"] == "incomplete"), "{short}");
}

#[test]
fn ollama_chat_calls_tools() {
    let server = TestServer::with_engine(engine(1024), |options| options.template = Some("chatml".into()));
    // Ollama has no tool choice. The biases make one call likely instead: `{"tool_calls": [{…}]}`.
    let id = |text: &str| server.post("/tokenize", &json!({ "content": text })).ok()["tokens"][0].to_string();
    let bias: Map<String, Value> = ["\"", "t", "]", "}"].iter().map(|text| (id(text), json!(100))).collect();
    let body = json!({
        "model": "any", "messages": [{ "role": "user", "content": "Go." }], "tools": [tool("f")],
        "options": { "num_predict": 120, "seed": 3, "temperature": 0, "logit_bias": bias },
    });
    DESCRIPTION.check_request("OllamaChatRequest", &body);
    let streamed = lines(&server.post("/api/chat", &body));
    let plain = server.post("/api/chat", &with(&body, json!({ "stream": false }))).ok();
    let text: String = streamed.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    // The ids of calls differ in each answer.
    let calls_of = |lines: &[Value]| -> Vec<Value> {
        let calls = lines.iter().filter_map(|line| line["message"]["tool_calls"].as_array());
        calls.flatten().map(|call| call["function"].clone()).collect()
    };
    let calls = calls_of(&streamed);
    let whole = (plain["message"]["content"].as_str().unwrap(), calls_of(std::slice::from_ref(&plain)));
    assert_eq!(whole, (text.as_str(), calls.clone()));
    assert_eq!((calls.len(), &plain["done_reason"]), (1, &json!("stop")), "{plain}");
    assert!(calls[0]["name"] == "f" && fits_schema(&calls[0]["arguments"]), "{plain}");
}

/// One conversation in the formats of four APIs gives the same prompt.
#[test]
fn conversation_with_calls_gives_one_prompt_in_all_apis() {
    let server = TestServer::with_engine(engine(1024), |options| options.template = Some("chatml".into()));
    let chat = json!({ "tools": [tool("f")], "max_tokens": 1, "messages": [
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "Go." },
        { "role": "assistant", "content": "Well.", "tool_calls": [
            { "id": "a", "type": "function", "function": { "name": "f", "arguments": "{\"c\":\"x\"}" } }] },
        { "role": "tool", "tool_call_id": "a", "name": "f", "content": "7" },
    ] });
    let tools = [flat("f", "input_schema")];
    let messages = json!({ "tools": tools, "max_tokens": 1, "system": "Be brief.", "messages": [
        { "role": "user", "content": "Go." },
        { "role": "assistant", "content": [{ "type": "text", "text": "Well." },
            { "type": "tool_use", "id": "a", "name": "f", "input": { "c": "x" } }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "a",
            "content": [{ "type": "text", "text": "7" }] }] },
    ] });
    let responses = json!({
        "tools": [with(&flat("f", "parameters"), json!({ "type": "function" }))], "instructions": "Be brief.",
        "input": [
            { "role": "user", "content": "Go." },
            { "role": "assistant", "content": [{ "type": "output_text", "text": "Well." }] },
            { "type": "function_call", "call_id": "a", "name": "f", "arguments": "{\"c\":\"x\"}" },
            { "type": "function_call_output", "call_id": "a", "output": "7" },
        ],
    });
    let ollama = json!({ "tools": [tool("f")], "stream": false, "options": { "num_predict": 1 }, "messages": [
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": "Go." },
        { "role": "assistant", "content": "Well.", "tool_calls": [
            { "function": { "name": "f", "arguments": { "c": "x" } } }] },
        { "role": "tool", "tool_name": "f", "content": "7" },
    ] });
    let prompt = server.post("/apply-template", &chat).ok()["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.contains("tool_response") && prompt.contains("Says it."), "{prompt}");
    let count = |path: &str, body: &Value, name: &str| server.post(path, body).ok()[name].clone();
    let wanted = count("/v1/chat/completions/input_tokens", &chat, "input_tokens");
    assert_eq!(count("/v1/messages/count_tokens", &messages, "input_tokens"), wanted);
    assert_eq!(count("/v1/responses/input_tokens", &responses, "input_tokens"), wanted);
    assert_eq!(count("/api/chat", &ollama, "prompt_eval_count"), wanted);
    // The prompt says that a tool has failed.
    let mut failed = messages.clone();
    failed["messages"][2]["content"][0]["is_error"] = true.into();
    assert!(count("/v1/messages/count_tokens", &failed, "input_tokens").as_u64() > wanted.as_u64());
}

#[test]
fn schemas_and_reasoning_work_in_every_api() {
    // A template that opens the reasoning itself, unless `enable_thinking` is false.
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: \
                    <think>{% if enable_thinking is defined and not enable_thinking %}</think>{% endif %}";
    let server = TestServer::start(|options| options.template = Some(template.into()));
    let user = json!([{ "role": "user", "content": "Go." }]);
    let messages = json!({ "messages": user, "max_tokens": 40, "seed": 1 });
    let responses = json!({ "input": "Go.", "max_output_tokens": 40, "seed": 1 });
    let chat = json!({ "messages": user, "stream": false, "options": { "num_predict": 40, "seed": 1 } });
    let generate = json!({ "prompt": "Go.", "stream": false, "options": { "num_predict": 40, "seed": 1 } });

    let json_of = |text: &Value| serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap();
    let format = json!({ "type": "json_schema", "schema": schema() });
    let said = with(&messages, json!({ "output_config": { "format": format, "effort": "low" } }));
    let said = server.post("/v1/messages", &said).ok();
    assert!(fits_schema(&json_of(&said["content"][0]["text"])), "{said}");
    let named = with(&format, json!({ "name": "answer", "strict": true }));
    let said = server.post("/v1/responses", &with(&responses, json!({ "text": { "format": named } }))).ok();
    assert!(fits_schema(&json_of(&said["output"][0]["content"][0]["text"])), "{said}");
    let said = server.post("/api/chat", &with(&chat, json!({ "format": schema() }))).ok();
    assert!(fits_schema(&json_of(&said["message"]["content"])), "{said}");
    for raw in [false, true] {
        let said = with(&generate, json!({ "format": schema(), "raw": raw }));
        let said = server.post("/api/generate", &said).ok();
        assert!(fits_schema(&json_of(&said["response"])), "{said}");
    }

    // The schema applies after the reasoning that the template has opened, which a random model does not end.
    let open = json!({ "thinking": { "type": "adaptive" }, "output_config": { "format": format } });
    let said = server.post("/v1/messages", &with(&messages, open)).ok();
    let thought = said["content"][0]["thinking"].as_str().unwrap();
    assert!(!thought.trim_start().starts_with('{'), "{said}");

    let grammar = json!({ "grammar": "root ::= \"hm</think>yes\"" });
    let on = json!({ "chat_template_kwargs": { "enable_thinking": true } });
    let thinking = json!({ "thinking": { "type": "enabled", "budget_tokens": 20 } });
    let body = with(&with(&messages, thinking), grammar.clone());
    let said = server.post("/v1/messages", &body).ok();
    assert_eq!(
        said["content"],
        json!([{ "type": "thinking", "thinking": "hm", "signature": "" },
        { "type": "text", "text": "yes" }])
    );
    let streamed = events(&server.post("/v1/messages", &with(&body, json!({ "stream": true }))));
    let thought: String = streamed.iter().filter_map(|event| event["delta"]["thinking"].as_str()).collect();
    let blocks: Vec<&Value> = streamed.iter().filter(|event| event["type"] == "content_block_stop").collect();
    assert_eq!((thought.as_str(), blocks.len()), ("hm", 2));
    assert!(streamed.iter().any(|event| event["delta"]["type"] == "signature_delta"));

    let body = with(&with(&responses, on.clone()), grammar.clone());
    let said = server.post("/v1/responses", &body).ok();
    assert_eq!(said["output"][0]["content"], json!([{ "type": "reasoning_text", "text": "hm" }]));
    assert_eq!(said["output"][1]["content"][0]["text"], "yes");
    assert!(said["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64() > Some(0));
    let streamed = events(&server.post("/v1/responses", &with(&body, json!({ "stream": true }))));
    assert_eq!(
        streamed[streamed.len() - 1]["response"]["output"][1]["content"],
        said["output"][1]["content"]
    );
    assert!(streamed.iter().any(|event| event["type"] == "response.reasoning_text.done"));

    let body = with(&with(&chat, json!({ "think": "high" })), grammar.clone());
    let said = server.post("/api/chat", &body).ok();
    assert_eq!((&said["message"]["thinking"], &said["message"]["content"]), (&json!("hm"), &json!("yes")));
    let streamed = lines(&server.post("/api/chat", &with(&body, json!({ "stream": true }))));
    let thought: String = streamed.iter().filter_map(|line| line["message"]["thinking"].as_str()).collect();
    assert_eq!(thought, "hm");
    let body = with(&with(&generate, json!({ "think": true })), grammar);
    let said = server.post("/api/generate", &body).ok();
    assert_eq!((&said["thinking"], &said["response"]), (&json!("hm"), &json!("yes")));
    let name = server.get("/api/tags").ok()["models"][0]["name"].clone();
    let shown = server.post("/api/show", &json!({ "model": name })).ok();
    assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking"]));
    // Reasoning is off by default: the template closes it.
    let plain = server.post("/v1/messages/count_tokens", &messages).ok()["input_tokens"].as_u64();
    let open = json!({ "thinking": { "type": "adaptive" } });
    assert!(
        plain
            > server.post("/v1/messages/count_tokens", &with(&messages, open)).ok()["input_tokens"].as_u64()
    );
}

#[test]
fn reasoning_marks_come_from_the_template() {
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: [THINK]";
    let server = TestServer::start(|options| options.template = Some(template.into()));
    let user = json!({ "role": "user", "content": "Go." });
    let body = json!({ "messages": [user], "grammar": "root ::= \"hm[/THINK]yes\"", "max_tokens": 40 });
    let said = server.post("/v1/chat/completions", &body).ok()["choices"][0]["message"].clone();
    assert_eq!((&said["reasoning_content"], &said["content"]), (&json!("hm"), &json!("yes")));
    let whole = server.post("/v1/chat/completions", &with(&body, json!({ "reasoning_format": "none" }))).ok();
    assert_eq!(whole["choices"][0]["message"]["content"], "hm[/THINK]yes");
    // A given answer comes after the reasoning, which the template has opened.
    let begun = json!({ "messages": [user, { "role": "assistant", "content": "Well" }] });
    let prompt = server.post("/apply-template", &begun).ok()["prompt"].clone();
    assert_eq!(prompt, "user: Go.\nassistant: [THINK][/THINK]Well");
}

#[test]
fn documents_and_tool_images_are_accepted() {
    let server = TestServer::start(|options| options.template = Some("chatml".into()));
    let call = json!({ "id": "t", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let chat = json!({ "max_tokens": 1, "messages": [
        { "role": "user", "content": "a" }, { "role": "assistant", "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "t",
            "content": [{ "type": "image_url", "image_url": { "url": "http://x" } }] }] });
    let messages = json!({ "max_tokens": 1, "messages": [
        { "role": "user", "content": [{ "type": "text", "text": "a" },
            { "type": "document", "source": { "type": "text", "media_type": "text/plain", "data": "b" } }] },
        { "role": "assistant", "content": [{ "type": "tool_use", "id": "t", "name": "f", "input": {} }] },
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t",
            "content": [{ "type": "image", "source": { "type": "base64", "data": "" } }] }] }] });
    let responses = json!({ "max_output_tokens": 1, "input": [
        { "role": "user", "content": "a" },
        { "type": "function_call", "call_id": "t", "name": "f", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "t",
            "output": [{ "type": "input_image", "image_url": "http://x" }] }] });
    for (path, body) in
        [("/v1/chat/completions", &chat), ("/v1/messages", &messages), ("/v1/responses", &responses)]
    {
        server.post(path, body).ok();
    }
    let ollama = json!({ "stream": false, "options": { "num_predict": 1 }, "messages": [
        { "role": "user", "content": "a" }, { "role": "assistant", "tool_calls": [call] },
        { "role": "tool", "tool_name": "f", "content": "", "images": ["x"] }] });
    server.post("/api/chat", &ollama).ok();
    let prompt = server.post("/apply-template", &chat).ok()["prompt"].as_str().unwrap().to_owned();
    assert!(prompt.contains("an image here, which this model cannot see"), "{prompt}");
}

#[test]
fn unsupported_fields_are_named() {
    let server = TestServer::start(|options| options.template = Some("chatml".into()));
    let user = json!([{ "role": "user", "content": "Go." }]);
    let messages = json!({ "messages": user, "max_tokens": 1 });
    let responses = json!({ "input": "Go.", "max_output_tokens": 1 });
    let ollama = json!({ "messages": user, "stream": false, "options": { "num_predict": 1 } });
    let cases: Vec<(&str, &Value, Value, &str)> = vec![
        (
            "/v1/messages",
            &messages,
            json!({ "tools": [{ "type": "web_search_20250305", "name": "web_search" }] }),
            "tools[0].type",
        ),
        ("/v1/messages", &messages, json!({ "tools": [{ "name": "" }] }), "tools[0].name"),
        (
            "/v1/messages",
            &messages,
            json!({ "tools": [{ "name": "f", "input_schema": 3 }] }),
            "tools[0].input_schema",
        ),
        ("/v1/messages", &messages, json!({ "tool_choice": { "type": "tool", "name": "f" } }), "tool_choice"),
        ("/v1/messages", &messages, json!({ "tool_choice": "auto" }), "tool_choice"),
        ("/v1/messages", &messages, json!({ "thinking": { "type": "much" } }), "thinking.type"),
        (
            "/v1/messages",
            &messages,
            json!({ "output_config": { "format": { "type": "xml" } } }),
            "output_config.format.type",
        ),
        (
            "/v1/messages",
            &messages,
            json!({ "guided_regex": "a", "tools": [{ "name": "f" }] }),
            "guided_regex",
        ),
        (
            "/v1/messages",
            &messages,
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }),
            "messages[0].content[0].source",
        ),
        ("/v1/responses", &responses, json!({ "tools": [{ "type": "functoin" }] }), "tools[0].type"),
        ("/v1/responses", &responses, json!({ "tool_choice": { "type": "file_search" } }), "tool_choice"),
        ("/v1/responses", &responses, json!({ "text": { "format": { "type": "xml" } } }), "text.format.type"),
        (
            "/v1/responses",
            &responses,
            json!({ "text": { "format": { "type": "json_schema", "name": "a" } } }),
            "text.format.schema",
        ),
        ("/v1/responses", &responses, json!({ "input": [{ "type": "other_trigger" }] }), "input[0].type"),
        ("/v1/responses", &responses, json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        ("/v1/responses", &responses, json!({ "conversation": "conv_1" }), "conversation"),
        ("/v1/responses", &responses, json!({ "background": true }), "background"),
        ("/v1/responses", &responses, json!({ "truncation": "auto" }), "truncation"),
        ("/v1/responses", &responses, json!({ "top_logprobs": 3 }), "top_logprobs"),
        ("/v1/responses", &responses, json!({ "include": ["message.output_text.logprobs"] }), "include"),
    ];
    for (path, body, more, param) in cases {
        let answer = server.post(path, &with(body, more.clone()));
        let error = answer.error(400);
        // Anthropic's errors have no field for the name, so it is in the message.
        let named =
            error["param"] == param || error["message"].as_str().unwrap().contains(&format!("`{param}`"));
        assert!(named, "{more}: {error}");
    }
    let custom = json!({ "messages": user, "tools": [{ "type": "custom", "custom": { "name": "f" } }] });
    let error = server.post("/v1/chat/completions", &custom).error(400);
    assert!(error["message"].as_str().unwrap().contains("/v1/responses"), "{error}");
    for (more, param) in [
        (json!({ "format": "xml" }), "format"),
        (json!({ "think": true }), "think"),
        (json!({ "think": "much" }), "think"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (
            json!({ "messages": [{ "role": "user", "content": "a", "images": ["x"] }] }),
            "messages[0].images[0]",
        ),
    ] {
        let answer = server.post("/api/chat", &with(&ollama, more));
        assert_eq!(answer.status, 400);
        assert!(answer.json()["error"].as_str().unwrap().contains(&format!("`{param}`")), "{}", answer.text);
    }
    // Unknown fields are ignored, and so is null.
    let odd = json!({ "unknown": { "a": [1] }, "tools": null, "tool_choice": null, "metadata": {} });
    for (path, body) in [("/v1/messages", &messages), ("/v1/responses", &responses), ("/api/chat", &ollama)] {
        assert_eq!(server.post(path, &with(body, odd.clone())).status, 200, "{path}");
    }
}
