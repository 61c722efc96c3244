//! A model with a NaN weight: every family of endpoints answers with an error.

use serde_json::json;
use sterna::engine::{Engine, EngineOptions};
use sterna::gguf::Gguf;

use super::client::{N_CTX, SLOTS, TestServer};

#[test]
fn nan_logits_are_a_server_error() {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let mut bytes = std::fs::read(path).unwrap();
    let gguf = Gguf::from_bytes(bytes.clone().into()).unwrap();
    let at = gguf.find("blk.1.ffn_norm.weight").unwrap().start as usize;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let options = EngineOptions {
        device: "cpu".parse().unwrap(),
        n_ctx: Some(N_CTX),
        threads: Some(1),
        n_seqs: SLOTS,
        ..EngineOptions::default()
    };
    let server = TestServer::with_engine(Engine::from_bytes(bytes.into(), &options).unwrap(), |_| ());
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": "Hi", "max_tokens": 4 })),
        ("/v1/completions", json!({ "prompt": "Hi", "max_tokens": 4, "temperature": 0, "logprobs": 1 })),
        ("/v1/chat/completions", json!({ "messages": messages, "max_tokens": 4 })),
        ("/v1/messages", json!({ "model": "m", "messages": messages, "max_tokens": 4 })),
        ("/v1/responses", json!({ "input": "Hi", "max_output_tokens": 16 })),
        ("/completion", json!({ "prompt": "Hi", "n_predict": 4 })),
        ("/api/generate", json!({ "model": "m", "prompt": "Hi" })),
    ] {
        for stream in [false, true] {
            let mut body = body.clone();
            body["stream"] = stream.into();
            let answer = server.post(path, &body);
            assert!(answer.status == 500 || stream && answer.status == 200, "{path}: {}", answer.text);
            let is_named = answer.text.contains("NaN or infinite") && answer.text.contains("1.ffn_in");
            assert!(is_named && answer.text.contains("error"), "{path}: {}", answer.text);
        }
    }
    server.get("/health").ok();
}
