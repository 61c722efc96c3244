//! Anthropic's and ollama's endpoints, and OpenAI's responses.

use serde_json::{Value, json};

use super::client::TestServer;
use super::dialects::with;

#[test]
fn anthropic_messages_endpoint_works() {
    let server = TestServer::start(|_| ());
    let body = json!({
        "model": "any", "max_tokens": 8, "temperature": 0, "ignore_eos": true,
        "system": [{ "type": "text", "text": "Be brief." }],
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "Tell me of the sea." }] }],
    });
    let plain = server.post("/v1/messages", &body).ok();
    assert_eq!((&plain["type"], &plain["stop_reason"]), (&json!("message"), &json!("max_tokens")));
    assert!(plain["id"].as_str().unwrap().starts_with("msg_"));
    let text = plain["content"][0]["text"].as_str().unwrap().to_owned();
    let counted = server.post("/v1/messages/count_tokens", &body).ok()["input_tokens"].clone();
    assert_eq!(plain["usage"]["input_tokens"], counted);

    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let answer = server.post("/v1/messages", &streamed);
    let events: Vec<Value> = answer.data().iter().map(|data| serde_json::from_str(data).unwrap()).collect();
    let names = answer.text.lines().filter_map(|line| line.strip_prefix("event: "));
    assert!(names.eq(events.iter().map(|event| event["type"].as_str().unwrap())));
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["message_start", "content_block_start"]);
    assert_eq!(kinds[kinds.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let streamed_text: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(streamed_text, text);

    let mut stopped = body.clone();
    let word: String = text.chars().skip(4).take(3).collect();
    stopped["stop_sequences"] = json!(["never", word]);
    let stopped = server.post("/v1/messages", &stopped).ok();
    assert_eq!((&stopped["stop_reason"], &stopped["stop_sequence"]), (&json!("stop_sequence"), &json!(word)));

    let mut endless = body;
    endless.as_object_mut().unwrap().remove("max_tokens");
    let answer = server.post("/v1/messages", &endless);
    assert_eq!(answer.error(400)["type"], "invalid_request_error");
    assert_eq!(answer.json()["type"], "error");
}

#[test]
fn claude_code_conversations_share_a_prefix() {
    let server = TestServer::start(|_| ());
    let long = "You see the old owl on a stone. ".repeat(8);
    let ask = |path: &str, billing: &[&str], question: &str| {
        let system: Vec<Value> =
            billing.iter().chain([&&*long]).map(|text| json!({ "type": "text", "text": text })).collect();
        let messages = json!([{ "role": "user", "content": question }]);
        server.post(path, &json!({ "max_tokens": 1, "system": system, "messages": messages })).ok()
    };
    let line = |sum: &str| format!("x-anthropic-billing-header: cc_version=2.1.37.{sum}; cch={sum}00;");
    let (one, two) = (line("0d9"), line("e61"));
    let count = |billing: &[&str]| ask("/v1/messages/count_tokens", billing, "one");
    assert_eq!(count(&[&one]), count(&[]));
    let first = ask("/v1/messages", &[&one], "one");
    let second = ask("/v1/messages", &[&two], "two");
    assert_eq!(first["usage"]["cache_read_input_tokens"], 0);
    // Both full pages of the system prompt.
    assert_eq!(second["usage"]["cache_read_input_tokens"], 128);
}

#[test]
fn ollama_endpoints_work() {
    let server = TestServer::start(|options| options.template = Some("chatml".into()));
    let caps = server.get("/props").ok()["chat_template_caps"].clone();
    assert_eq!((&caps["supports_system_role"], &caps["supports_tools"]), (&json!(true), &json!(false)));
    let options = json!({ "num_predict": 6, "temperature": 0, "seed": 1 });
    let body =
        json!({ "model": "any", "messages": [{ "role": "user", "content": "Hi" }], "options": options });
    let answer = server.post("/api/chat", &body);
    assert_eq!(answer.header("content-type"), Some("application/x-ndjson"));
    let lines: Vec<Value> = answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, others) = lines.split_last().unwrap();
    assert!(others.iter().all(|line| line["done"] == false) && last["done"] == true);
    assert!(last["eval_count"].as_u64().unwrap() <= 6);
    let text: String = lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    let mut plain = body.clone();
    plain["stream"] = false.into();
    assert_eq!(server.post("/api/chat", &plain).ok()["message"]["content"], text);

    let body = json!({ "prompt": "You may", "raw": true, "stream": false, "options": options });
    let first = server.post("/api/generate", &body).ok();
    let native = json!({ "prompt": "You may", "n_predict": 6, "temperature": 0, "seed": 1 });
    assert_eq!(first["response"], server.post("/completion", &native).ok()["content"]);
    let on = json!({ "context": first["context"], "raw": true, "prompt": "",
        "stream": false, "options": options });
    assert_eq!(
        server.post("/api/generate", &on).ok()["prompt_eval_count"],
        first["context"].as_array().unwrap().len()
    );
    assert_eq!(server.post("/api/generate", &json!({ "model": "any" })).ok()["done_reason"], "load");
    let with_system = json!({ "prompt": "You may", "raw": true, "system": "Be kind.", "stream": false });
    let refused = server.post("/api/generate", &with_system);
    assert!(refused.status == 400 && refused.text.contains("raw mode"), "{}", refused.text);
    // Go reads half of a character as U+FFFD.
    let count = |prompt: &str| {
        let body =
            format!(r#"{{"prompt":"{prompt}","raw":true,"stream":false,"options":{{"num_predict":1}}}}"#);
        server.post_with("/api/generate", "", body.as_bytes()).ok()["prompt_eval_count"].clone()
    };
    assert_eq!(count(r"a\ud83d"), count(r"a\ufffd"));

    assert!(server.get("/api/version").ok()["version"].as_str().unwrap().starts_with("0."));
    let (listed, loaded) = (server.get("/api/tags").ok(), server.get("/api/ps").ok());
    let (name, digest) = (&listed["models"][0]["name"], &listed["models"][0]["digest"]);
    assert_eq!((&loaded["models"][0]["name"], &loaded["models"][0]["digest"]), (name, digest));
    let digest = digest.as_str().unwrap();
    assert!(digest.len() == 64 && digest.bytes().all(|c| c.is_ascii_hexdigit()), "{digest}");
    let show = server.post("/api/show", &json!({ "model": name })).ok();
    assert_eq!(show["capabilities"], json!(["completion", "tools"]));
    let own = format!("{}:latest", name.as_str().unwrap());
    assert_eq!(server.post("/api/pull", &json!({ "name": own })).ok(), json!({ "status": "success" }));
    for (path, way_out) in [
        ("/api/pull", "sterna pull"),
        ("/api/push", "hf upload"),
        ("/api/create", "--models NAME=FILE"),
        ("/api/blobs/sha256:29fd", "--models NAME=FILE"),
        ("/api/copy", "-a NAME,OTHER"),
    ] {
        let refused = server.post(path, &json!({ "model": "x", "source": "x", "destination": "y" }));
        assert!(refused.status == 501 && refused.text.contains(way_out), "{}", refused.text);
    }
    for (field, value, way_out) in [
        ("images", json!(["aGk="]), "-mm FILE"),
        ("suffix", json!("end"), "`raw`"),
        ("template", json!("{{ .Prompt }}"), "--chat-template"),
    ] {
        let refused = server.post("/api/generate", &json!({ "prompt": "x", field: value }));
        assert!(refused.status == 400 && refused.text.contains(way_out), "{}", refused.text);
    }
}

#[test]
fn model_without_template_reads_the_system() {
    // A template without roles is none for chats.
    let server = TestServer::start(|options| options.template = Some("{{ bos_token }}".into()));
    let count = |more: Value| {
        let body = with(&json!({ "stream": false, "options": { "num_predict": 1 } }), more);
        server.post("/api/generate", &body).ok()["prompt_eval_count"].clone()
    };
    let whole = count(json!({ "prompt": "Be kind.\n\nYou may" }));
    assert_eq!(count(json!({ "prompt": "You may", "system": "Be kind." })), whole);
}

#[test]
fn openai_responses_endpoint_works() {
    let server = TestServer::start(|_| ());
    let body = json!({
        "model": "any", "instructions": "Be brief.", "max_output_tokens": 6, "temperature": 0,
        "ignore_eos": true,
        "input": [
            { "role": "developer", "content": "Be kind." },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "Hi" }] },
            { "type": "reasoning", "summary": [] },
        ],
    });
    let plain = server.post("/v1/responses", &body).ok();
    assert_eq!((&plain["object"], &plain["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(plain["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(plain["usage"]["output_tokens"], 6);
    let counted = server.post("/v1/responses/input_tokens", &body).ok();
    assert_eq!(plain["usage"]["input_tokens"], counted["input_tokens"]);

    let mut streamed = body.clone();
    streamed["stream"] = true.into();
    let answer = server.post("/v1/responses", &streamed);
    let events: Vec<Value> = answer.data().iter().map(|data| serde_json::from_str(data).unwrap()).collect();
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], at);
    }
    let names = answer.text.lines().filter_map(|line| line.strip_prefix("event: "));
    assert!(names.eq(events.iter().map(|event| event["type"].as_str().unwrap())));
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let begin = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ];
    assert_eq!(kinds[..4], begin);
    let end = [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(kinds[kinds.len() - 4..], end);
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let text: String = deltas.map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(plain["output"][0]["content"][0]["text"], text);
    let last = &events[events.len() - 1]["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], text);
    assert_eq!(
        (&last["id"], &last["output"][0]["id"]),
        (&events[0]["response"]["id"], &events[2]["item"]["id"])
    );

    for (name, value) in [("previous_response_id", json!("x")), ("background", json!(true))] {
        let mut other = body.clone();
        other[name] = value;
        assert_eq!(server.post("/v1/responses", &other).error(400)["param"], name);
    }
}
