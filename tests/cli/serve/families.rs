//! Anthropic's and ollama's endpoints.

use serde_json::{Value, json};

use super::client::TestServer;

#[test]
fn anthropics_messages() {
    let server = TestServer::start(|_| ());
    let body = json!({
        "model": "any", "max_tokens": 8, "temperature": 0, "ignore_eos": true, "system": [{ "type": "text", "text": "Be brief." }],
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
    let told: String = events.iter().filter_map(|event| event["delta"]["text"].as_str()).collect();
    assert_eq!(told, text);

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
fn ollamas_lines() {
    let server = TestServer::start(|options| options.template = Some("chatml".into()));
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
    let on = json!({ "context": first["context"], "raw": true, "prompt": "", "stream": false, "options": options });
    assert_eq!(
        server.post("/api/generate", &on).ok()["prompt_eval_count"],
        first["context"].as_array().unwrap().len()
    );
    assert_eq!(server.post("/api/generate", &json!({ "model": "any" })).ok()["done_reason"], "load");

    assert!(server.get("/api/version").ok()["version"].as_str().unwrap().starts_with("0."));
    let name = server.get("/api/tags").ok()["models"][0]["name"].clone();
    assert_eq!(server.get("/api/ps").ok()["models"][0]["name"], name);
    let show = server.post("/api/show", &json!({ "model": name })).ok();
    assert_eq!(show["capabilities"], json!(["completion"]));
    let refused = server.post("/api/pull", &json!({ "model": "x" }));
    assert_eq!(refused.status, 501);
    assert!(refused.json()["error"].is_string());
}
