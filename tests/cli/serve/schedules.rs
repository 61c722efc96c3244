//! The bytes of an answer do not depend on the schedule, over HTTP and for every KV cache type.

use std::io::BufRead;

use serde_json::{Value, json};
use sterna::engine::{Engine, EngineOptions};

use super::client::{TestServer, engine_with};

const CACHES: [&str; 7] = ["f16", "f32", "q8_0", "q4_0", "turboquant", "turboquant-4", "tq3_0"];
/// More clients than slots.
const CLIENTS: u64 = 8;
/// Pages for all sequences together: fewer than they need, so that some are preempted and start again.
const PAGES: usize = 7;

fn with_cache(cache: &str, pages: Option<usize>) -> Engine {
    let has_window = cache.starts_with('t');
    engine_with(|options| EngineOptions {
        cache_type_k: cache.parse().unwrap(),
        cache_type_v: cache.parse().unwrap(),
        // The smallest sizes, so that most pages are quantised.
        kv_sinks: has_window.then_some(64),
        kv_window: has_window.then_some(64),
        kv_positions: pages.map(|pages| 64 * pages),
        ..options
    })
}

/// A request that differs from all others. Its prompt shares a prefix with three others.
fn request(at: u64) -> Value {
    let shared = (0..140).map(|i| (i * i * 7 + at % 4 * 131) % 500);
    let own = (0..at * 23 % 40).map(|i| (i * 11 + at * 17) % 500);
    let prompt: Vec<u64> = shared.chain(own).collect();
    json!({
        "prompt": prompt, "max_tokens": 4 + at * 13 % 30, "seed": at, "ignore_eos": true,
        "n": if at.is_multiple_of(5) { 2 } else { 1 },
        "temperature": if at.is_multiple_of(3) { 0.0 } else { 1.0 },
        "repeat_penalty": if at.is_multiple_of(2) { 1.0 } else { 1.3 },
    })
}

/// The texts of an answer, per choice, and its total number of tokens.
fn outcome(answer: &Value) -> (Vec<Value>, Value) {
    let choices = answer["choices"].as_array().unwrap();
    let texts = choices.iter().map(|choice| choice["text"].clone()).collect();
    (texts, answer["usage"]["completion_tokens"].clone())
}

/// The same for a streamed answer.
fn streamed(server: &TestServer, mut body: Value) -> (Vec<Value>, Value) {
    body["stream"] = true.into();
    body["stream_options"] = json!({ "include_usage": true });
    let n = body["n"].as_u64().unwrap() as usize;
    let (mut texts, mut tokens) = (vec![String::new(); n], Value::Null);
    for chunk in server.post_with("/v1/completions", "", body.to_string().as_bytes()).chunks() {
        for choice in chunk["choices"].as_array().unwrap() {
            texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
        }
        if !chunk["usage"].is_null() {
            tokens = chunk["usage"]["completion_tokens"].clone();
        }
    }
    (texts.into_iter().map(Value::from).collect(), tokens)
}

#[test]
fn answers_do_not_depend_on_the_schedule() {
    let mut preemptions = 0.0;
    for cache in CACHES {
        let alone = TestServer::with_engine(with_cache(cache, None), |options| options.cache_prompt = false);
        let alone: Vec<_> =
            (0..2 * CLIENTS).map(|at| outcome(&alone.post("/v1/completions", &request(at)).ok())).collect();
        let server = TestServer::with_engine(with_cache(cache, Some(PAGES)), |_| ());
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                let (alone, server) = (&alone, &server);
                scope.spawn(move || {
                    for at in [client, 2 * CLIENTS - 1 - client] {
                        let now = match at % 2 {
                            0 => outcome(&server.post("/v1/completions", &request(at)).ok()),
                            _ => streamed(server, request(at)),
                        };
                        assert_eq!(now, alone[at as usize], "{cache}: request {at}");
                        // A client that disconnects in the middle of its answer.
                        let mut leaves = request(at + 2 * CLIENTS);
                        leaves["stream"] = true.into();
                        (leaves["n"], leaves["max_tokens"]) = (1.into(), 100.into());
                        let mut line = String::new();
                        server.begin("/v1/completions", &leaves).read_line(&mut line).unwrap();
                    }
                });
            }
        });
        server.until("all have ended", |server| server.metric("llamacpp:requests_processing") == 0.0);
        assert!(server.metric("vllm:prefix_cache_hits_total") > 0.0, "{cache}: no prompt prefix was reused");
        preemptions += server.metric("vllm:num_preemptions_total");
    }
    assert!(preemptions > 0.0, "no sequence was preempted");
}
