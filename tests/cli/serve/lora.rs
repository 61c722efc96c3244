//! LoRA adapters of the server: their list, the scales of requests, adapters by name, and the prefix cache.

use serde_json::{Value, json};
use sterna::engine::{Adapter, EngineOptions};

use super::client::{TestServer, engine_with};

/// A server with an adapter that is not applied, and another one that requests may name `sql`.
fn server() -> TestServer {
    let adapter = |name: &str, factor: f32| {
        Adapter::new(name, support::lora::of_bitnet(factor)).expect("a valid adapter")
    };
    let adapters = vec![
        adapter("first.gguf", 6.0).with_scale(0.0),
        adapter("second.gguf", -6.0).with_scale(0.0).with_alias("sql"),
    ];
    TestServer::with_engine(engine_with(|options| EngineOptions { adapters, ..options }), |_| ())
}

/// The text that follows a prompt of more than a page, and how many of its tokens were cached.
fn answer(server: &TestServer, more: Value) -> (String, u64) {
    let prompt: Vec<u32> = (0..130).map(|i| (i * 37 + 11) % 500).collect();
    let mut body = json!({ "prompt": prompt, "n_predict": 16, "temperature": 0, "ignore_eos": true });
    let Value::Object(more) = more else { panic!("an object") };
    more.into_iter().for_each(|(name, value)| body[name] = value);
    let answer = server.post("/completion", &body).ok();
    let text = answer["content"].as_str().expect("a text").to_owned();
    (text, answer["timings"]["cache_n"].as_u64().expect("a number"))
}

fn scales(server: &TestServer) -> Vec<f64> {
    let list = server.get("/lora-adapters").ok();
    list.as_array().unwrap().iter().map(|entry| entry["scale"].as_f64().unwrap()).collect()
}

#[test]
fn requests_choose_adapters() {
    let server = server();
    let list = server.get("/lora-adapters").ok();
    let first = json!({ "id": 0, "path": "first.gguf", "scale": 0.0, "task_name": "", "prompt_prefix": "" });
    assert_eq!(list[0], first);
    let of = |scale: f64| json!({ "lora": [{ "id": 0, "scale": scale }] });
    let (plain, _) = answer(&server, json!({}));
    let (adapted, _) = answer(&server, of(1.0));
    let (half, _) = answer(&server, of(-2.0));
    assert!(plain != adapted && adapted != half && plain != half);
    // Each finds its own pages; a request without the field follows one with it.
    for (more, text) in [(of(1.0), &adapted), (json!({}), &plain), (of(-2.0), &half), (of(0.0), &plain)] {
        assert_eq!(answer(&server, more), (text.clone(), 128));
    }
    // The default, which an empty list asks for.
    let set = |list: Value| server.post("/lora-adapters", &list);
    assert_eq!(set(json!([{ "id": 0, "scale": 1 }])).ok(), json!({ "success": true }));
    assert_eq!(scales(&server), [1.0, 0.0]);
    assert_eq!(answer(&server, json!({})), (adapted.clone(), 128));
    assert_eq!(answer(&server, json!({ "lora": [] })), (adapted, 128));
    assert_eq!(answer(&server, of(0.0)), (plain.clone(), 128));
    set(json!([{ "id": 1, "scale": 0.5 }])).ok();
    assert_eq!(scales(&server), [0.0, 0.5]);
    set(json!([])).ok();
    assert_eq!(answer(&server, json!({})), (plain, 128));
}

#[test]
fn adapters_are_models_by_name() {
    let server = server();
    let (plain, _) = answer(&server, json!({ "model": "tiny" }));
    let (named, _) = answer(&server, json!({ "model": "sql" }));
    let (chosen, cached) = answer(&server, json!({ "lora": [{ "id": 1, "scale": 1 }] }));
    assert_ne!(plain, named);
    assert_eq!((chosen, cached), (named, 128));
    let models = server.get("/v1/models").ok();
    let models = models["data"].as_array().unwrap();
    assert_eq!(models.len(), 2);
    assert!(models[0].get("parent").is_none());
    assert_eq!((&models[1]["id"], &models[1]["parent"]), (&json!("sql"), &models[0]["id"]));
    assert_eq!(server.get("/v1/models/sql").ok()["parent"], models[0]["id"]);
    server.get("/v1/models/other").error(404);
}

#[test]
fn wrong_choices_are_refused() {
    let server = server();
    let said = |answer: Value| answer["message"].as_str().unwrap().to_owned();
    let prompt = |lora: Value| json!({ "prompt": "Hi", "n_predict": 1, "lora": lora });
    for (lora, part) in [
        (json!([{ "id": 2, "scale": 1 }]), "`lora[0].id`: want the id of an adapter, 0 to 1"),
        (json!([{ "id": -1, "scale": 1 }]), "lora[0].id"),
        (json!([{ "id": 0 }]), "lora[0].scale"),
        (json!([{ "scale": 1 }]), "lora[0].id"),
        (json!([{ "id": 0, "scale": 1 }, { "id": 0, "scale": 1 }]), "each adapter once"),
        (json!([1]), "lora[0]"),
        (json!("sql"), "lora"),
    ] {
        let message = said(server.post("/completion", &prompt(lora.clone())).error(400));
        assert!(message.contains(part), "{message} without {part}");
    }
    for list in [json!({}), json!([{ "id": 2, "scale": 1 }]), json!(null), json!([[]])] {
        server.post("/lora-adapters", &list).error(400);
    }
    assert_eq!(scales(&server), [0.0, 0.0]);
    let without = TestServer::start(|_| ());
    assert_eq!(without.get("/lora-adapters").ok(), json!([]));
    let message = said(without.post("/completion", &prompt(json!([{ "id": 0, "scale": 1 }]))).error(400));
    assert!(message.contains("started without any"), "{message}");
}
