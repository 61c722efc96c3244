//! Servers with several models: which model answers, and which ones are unloaded.

use std::io::{BufRead, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use assert_cmd::Command;
use serde_json::{Value, json};
use sterna::engine::{Error, SamplerOptions};
use sterna::serve::{Loaded, ModelSource, Opened};

use super::client::{N_CTX, TestServer, engine, read_head};
use super::dialects::with;

/// A model with a declared size of `bytes`, which counts its loads.
fn source(name: &str, bytes: u64, loads: &Arc<AtomicUsize>) -> ModelSource {
    let loads = Arc::clone(loads);
    let open = move || {
        let loads = Arc::clone(&loads);
        let load = move || {
            loads.fetch_add(1, Ordering::SeqCst);
            Ok(Loaded { engine: engine(N_CTX), sampler: SamplerOptions::default(), speculation: None })
        };
        Ok(Opened { bytes, load: Box::new(load) })
    };
    ModelSource { file_bytes: 7, ..ModelSource::new(name, open) }
}

/// A model that is not loaded before a message is sent.
fn held(name: &str) -> (ModelSource, std::sync::mpsc::Sender<()>) {
    let (sender, receiver): (_, Receiver<()>) = channel();
    let receiver = Mutex::new(receiver);
    let open = move || {
        receiver.lock().unwrap().recv().map_err(|_| "the test has ended")?;
        let load =
            || Ok(Loaded { engine: engine(N_CTX), sampler: SamplerOptions::default(), speculation: None });
        Ok(Opened { bytes: 0, load: Box::new(load) })
    };
    (ModelSource::new(name, open), sender)
}

fn ask(model: &str) -> Value {
    json!({ "model": model, "prompt": "You", "max_tokens": 2, "temperature": 0 })
}

/// Name and status of each listed model.
fn statuses(server: &TestServer) -> Vec<(String, String)> {
    let list = server.get("/v1/models").ok();
    let of = |entry: &Value| {
        (entry["id"].as_str().unwrap().to_owned(), entry["status"]["value"].as_str().unwrap().to_owned())
    };
    list["data"].as_array().unwrap().iter().map(of).collect()
}

fn loaded(server: &TestServer) -> Vec<String> {
    let all = statuses(server).into_iter();
    all.filter(|(_, status)| status == "loaded").map(|(name, _)| name).collect()
}

#[test]
fn requests_choose_their_model_by_name() {
    let loads = Arc::default();
    let mut sources: Vec<ModelSource> = ["a", "b", "c"].map(|name| source(name, 0, &loads)).into();
    sources[1].aliases.push("gpt-4o".into());
    let server = TestServer::several(sources, |_| ());
    assert_eq!(server.get("/health").status, 200);
    assert!(loaded(&server).is_empty(), "loaded before the first request");
    let answer = server.post("/v1/completions", &ask("b")).ok();
    assert_eq!(answer["model"], "b");
    assert_eq!(loaded(&server), ["b"]);
    assert_eq!(server.get("/v1/models/b").ok()["meta"]["n_ctx"], N_CTX);
    assert_eq!(server.get("/v1/models/c").ok()["status"]["value"], "unloaded");
    assert_eq!(server.post("/v1/completions", &ask("gpt-4o")).ok()["model"], "b");
    let found = server.get("/v1/models/gpt-4o").ok();
    assert_eq!((&found["id"], &found["aliases"]), (&json!("b"), &json!(["gpt-4o"])));

    let unknown = server.post("/v1/completions", &ask("d"));
    let error = unknown.error(404);
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    assert!(error["message"].as_str().unwrap().starts_with("The model `d` does not exist"));
    assert_eq!(server.get("/v1/models/d").error(404)["code"], "model_not_found");
    let anthropics = json!({ "model": "d", "max_tokens": 2,
        "messages": [{ "role": "user", "content": "Hi" }] });
    assert_eq!(server.post("/v1/messages", &anthropics).error(404)["type"], "not_found_error");
    assert_eq!(server.post("/api/chat", &json!({ "model": "d" })).status, 404);

    // Without a name the first model is used.
    let plain = json!({ "prompt": "You", "n_predict": 2 });
    assert_eq!(server.post("/completion", &plain).ok()["model"], "a");
    assert_eq!(server.get("/props?model=b").ok()["model_alias"], "b");
    assert_eq!(server.get("/slots?model=x").status, 404);

    // Ollama's clients append a tag to names. An empty request with `keep_alive` 0 unloads the model.
    let talk = json!({ "model": "c:latest", "stream": false, "options": { "num_predict": 2 },
        "messages": [{ "role": "user", "content": "Hi" }] });
    assert_eq!(server.post("/api/chat", &talk).ok()["model"], "c");
    // Older clients of ollama send `name`.
    assert_eq!(server.post("/api/show", &json!({ "name": "d" })).status, 404);
    assert_eq!(server.post("/api/show", &json!({ "name": "c" })).status, 200);
    let tags = server.get("/api/tags").ok();
    assert_eq!(tags["models"].as_array().unwrap().len(), 3);
    let gone = server.post("/api/generate", &json!({ "model": "c", "keep_alive": 0 })).ok();
    assert_eq!(gone["done_reason"], "unload");
    assert_eq!(loaded(&server), ["a", "b"]);
    assert_eq!(server.get("/api/ps").ok()["models"].as_array().unwrap().len(), 2);
    assert_eq!(server.post("/models/unload", &json!({ "model": "c" })).status, 400);
    assert_eq!(server.post("/models/load", &json!({ "model": "c" })).ok()["success"], true);
    assert_eq!(loaded(&server), ["a", "b", "c"]);
    assert_eq!(loads.load(Ordering::SeqCst), 4);
    // Metrics include the steps of unloaded models.
    let steps = server.metric("llamacpp:n_decode_total");
    assert_eq!(server.post("/models/unload", &json!({ "model": "b" })).ok()["success"], true);
    server.until("its thread has ended", |server| server.metric("llamacpp:n_decode_total") >= steps);
}

#[test]
fn keep_alive_zero_unloads_after_the_answer() {
    let loads = Arc::default();
    let server = TestServer::several(["a", "b"].map(|name| source(name, 0, &loads)).into(), |_| ());
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let chat = json!({ "model": "a", "messages": messages, "options": { "num_predict": 2 } });
    let generate = json!({ "model": "a", "prompt": "Hi", "options": { "num_predict": 2 } });
    let embed = json!({ "model": "a", "input": "Hi", "prompt": "Hi" });
    let cases = [
        ("/api/chat", &chat, json!({ "keep_alive": 0, "stream": false })),
        ("/api/chat", &chat, json!({ "keep_alive": "0" })),
        ("/api/generate", &generate, json!({ "keep_alive": "0s", "stream": false })),
        ("/api/generate", &generate, json!({ "keep_alive": 0.0 })),
        ("/api/embed", &embed, json!({ "keep_alive": "0m" })),
        ("/api/embeddings", &embed, json!({ "keep_alive": 0 })),
    ];
    for (at, (path, body, more)) in cases.into_iter().enumerate() {
        assert_eq!(server.post(path, &with(body, json!({ "keep_alive": "5m" }))).status, 200);
        assert_eq!(loaded(&server), ["a"], "{path}");
        let answer = server.post(path, &with(body, more.clone()));
        assert!(answer.status == 200 && !answer.text.contains("unload"), "{}", answer.text);
        assert_eq!(server.get("/api/ps").ok()["models"], json!([]), "{path} {more}");
        assert_eq!(loads.load(Ordering::SeqCst), at + 1);
    }
}

#[test]
fn least_recently_used_model_is_unloaded_when_idle() {
    let loads = Arc::default();
    let sources = ["a", "b", "c"].map(|name| source(name, 0, &loads)).into();
    let server = TestServer::several(sources, |options| options.models_max = 2);
    let whole = json!({ "model": "a", "prompt": "You", "max_tokens": 200, "ignore_eos": true,
        "temperature": 0 });
    let alone = server.post("/v1/completions", &whole).ok()["choices"][0]["text"].clone();
    server.post("/v1/completions", &ask("b")).ok();
    server.post("/v1/completions", &ask("a")).ok();
    server.post("/v1/completions", &ask("c")).ok();
    assert_eq!(loaded(&server), ["a", "c"], "b was used least recently");

    // One model at a time, and the model to unload is in the middle of an answer.
    let sources = ["a", "b"].map(|name| source(name, 0, &loads)).into();
    let server = TestServer::several(sources, |options| options.models_max = 1);
    let mut streamed = whole.clone();
    streamed["stream"] = true.into();
    let mut stream = server.begin("/v1/completions", &streamed);
    assert_eq!(read_head(&mut stream).0, 200);
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| server.post("/v1/completions", &ask("b")).ok());
        let mut rest = String::new();
        stream.read_to_string(&mut rest).unwrap();
        assert!(rest.contains("[DONE]"), "it was cut off: {rest}");
        let data = rest.lines().filter_map(|line| line.strip_prefix("data: {"));
        let chunk = |data: &str| serde_json::from_str::<Value>(&format!("{{{data}")).unwrap();
        let text: String =
            data.map(|data| chunk(data)["choices"][0]["text"].as_str().unwrap().to_owned()).collect();
        assert!(alone.as_str().unwrap().ends_with(&text) && !text.is_empty());
        assert_eq!(waits.join().unwrap()["model"], "b");
    });
    assert_eq!(loaded(&server), ["b"]);
    // Concurrent clients of both models are all answered, although only one model fits.
    std::thread::scope(|scope| {
        for model in ["a", "b", "a", "b"] {
            let server = &server;
            scope.spawn(move || assert_eq!(server.post("/v1/completions", &ask(model)).ok()["model"], model));
        }
    });
}

#[test]
fn loaded_models_answer_while_another_loads() {
    let loads = Arc::default();
    let (slow, go) = held("slow");
    let server = TestServer::several(vec![source("a", 0, &loads), slow], |_| ());
    server.post("/v1/completions", &ask("a")).ok();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| server.post("/v1/completions", &ask("slow")));
        server.until("it is loading", |server| statuses(server)[1].1 == "loading");
        assert_eq!(server.post("/v1/completions", &ask("a")).ok()["model"], "a");
        assert!(!waits.is_finished());
        go.send(()).unwrap();
        assert_eq!(waits.join().unwrap().ok()["model"], "slow");
    });
}

#[test]
fn models_stay_within_their_memory_limit() {
    let loads = Arc::default();
    let sources = [("a", 60), ("b", 50), ("c", 40), ("huge", 101)];
    let sources = sources.map(|(name, bytes)| source(name, bytes, &loads)).into();
    let server = TestServer::several(sources, |options| options.models_bytes = 100);
    for (model, then) in [("a", vec!["a"]), ("c", vec!["a", "c"]), ("b", vec!["b", "c"])] {
        server.post("/v1/completions", &ask(model)).ok();
        assert_eq!(loaded(&server), then);
    }
    let refused = server.post("/v1/completions", &ask("huge")).error(500);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("101") && message.contains("100"), "{message}");
    server.post("/v1/completions", &ask("a")).ok();
}

/// The limits allow both models, but the machine does not. If a model does not fit next to another one, that
/// one is unloaded. If it does not fit alone, it is refused.
#[test]
fn model_that_does_not_fit_unloads_another() {
    let loads = Arc::default();
    let tries = Arc::new(AtomicUsize::new(0));
    // Fits only at the second try, which is still for the first request.
    let counted = Arc::clone(&tries);
    let open = move || {
        let counted = Arc::clone(&counted);
        let load = move || match counted.fetch_add(1, Ordering::SeqCst) {
            1 => Ok(Loaded { engine: engine(N_CTX), sampler: SamplerOptions::default(), speculation: None }),
            _ => {
                let (weights_bytes, free_bytes) = (7 << 20, 5 << 20);
                let short =
                    Error::DoesNotFit { weights_bytes, kv_bytes: 0, bufs_bytes: 0, free_bytes, n_ctx: 64 };
                Err(short.into())
            }
        };
        Ok(Opened { bytes: 10, load: Box::new(load) as Box<dyn FnOnce() -> _> })
    };
    let large = ModelSource::new("large", open);
    let sources = vec![source("a", 10, &loads), source("b", 10, &loads), large];
    let server = TestServer::several(sources, |options| options.models_bytes = 100);
    for model in ["b", "a"] {
        server.post("/v1/completions", &ask(model)).ok();
    }
    assert_eq!(loaded(&server), ["a", "b"]);
    server.post("/v1/completions", &ask("large")).ok();
    // `b` was used least recently, and unloading it was enough.
    assert_eq!(loaded(&server), ["a", "large"]);
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    server.post("/models/unload", &json!({ "model": "large" })).ok();
    let refused = server.post("/v1/completions", &ask("large")).error(500);
    let message = refused["message"].as_str().unwrap();
    assert!(message.contains("7.0 MiB") && message.contains("5.0 MiB"), "{message}");
    // It was tried next to `a`, and alone.
    assert!(tries.load(Ordering::SeqCst) >= 4);
    assert_eq!(loaded(&server), [""; 0]);
    assert_eq!(server.post("/v1/completions", &ask("a")).ok()["model"], "a");
}

#[test]
fn model_that_fails_to_load_fails_only_its_requests() {
    let loads = Arc::default();
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    let open = move || match counted.fetch_add(1, Ordering::SeqCst) {
        0 => Err("/srv/broken.gguf: it starts with [72, 6f]".into()),
        _ => {
            let load = || {
                Ok(Loaded { engine: engine(N_CTX), sampler: SamplerOptions::default(), speculation: None })
            };
            Ok(Opened { bytes: 0, load: Box::new(load) as Box<dyn FnOnce() -> _> })
        }
    };
    let broken = ModelSource::new("broken", open);
    let server = TestServer::several(vec![source("a", 0, &loads), broken], |_| ());
    let refused = server.post("/v1/completions", &ask("broken")).error(500);
    let message = refused["message"].as_str().unwrap();
    assert!(
        message.contains("`broken`") && !message.contains("/srv") && !message.contains("72"),
        "{message}"
    );
    assert_eq!(server.get("/v1/models/broken").ok()["status"]["failed"], true);
    server.post("/v1/completions", &ask("a")).ok();
    assert_eq!(server.post("/v1/completions", &ask("broken")).ok()["model"], "broken");
    assert_eq!(tries.load(Ordering::SeqCst), 2);
}

#[test]
fn invalid_model_folders_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |args: &[&str], words: &str| {
        let mut sterna = Command::new(env!("CARGO_BIN_EXE_sterna"));
        let output = sterna.timeout(Duration::from_secs(60)).arg("serve").args(args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && stderr.contains(words), "{args:?}: {stderr}");
    };
    let path = folder.path().to_str().unwrap();
    refused(&["--models-dir", path], "no file ends in .gguf");
    refused(&["--models-dir", &format!("{path}/none")], "none");
    std::fs::create_dir(folder.path().join("sub")).unwrap();
    for name in ["m.gguf", "sub/m.gguf"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    refused(&["--models-dir", path], "two models are called `m`");
    refused(&["--models", "x=a.gguf", "-a", "y"], "--alias");
    refused(&["--slot-save-path", &format!("{path}/none")], "there is no such folder");
}
