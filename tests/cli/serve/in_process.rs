//! A server without a listener: it gives the same answers, which can be cancelled.

use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use sterna::engine::SamplerOptions;
use sterna::serve::{Answer, InProcess, Loaded, ModelSource, Refusal, ServeError, ServeOptions};

use super::client::{TestServer, engine};

/// Context length of a text that does not end while a test runs. It pauses before that, as nothing reads it.
const N_CTX: usize = 4096;

fn start() -> InProcess {
    let load = || Ok(Loaded { engine: engine(N_CTX), sampler: SamplerOptions::default(), speculation: None });
    InProcess::start(ServeOptions::default(), ModelSource::once("test", load)).unwrap()
}

fn next(answer: &mut Answer) -> Option<Result<Bytes, Refusal>> {
    match answer.next_within(Duration::from_secs(60)) {
        Poll::Ready(next) => next,
        Poll::Pending => panic!("no answer"),
    }
}

fn whole(mut answer: Answer) -> Result<Vec<u8>, Refusal> {
    let mut all = Vec::new();
    while let Some(piece) = next(&mut answer) {
        all.extend_from_slice(&piece?);
    }
    Ok(all)
}

fn ask(inner: &InProcess, path: &str, body: &Value) -> Result<Value, Refusal> {
    whole(inner.request(path, Some(body.to_string()))).map(|bytes| serde_json::from_slice(&bytes).unwrap())
}

/// Starts a text that is generated until it is cancelled.
fn endless(inner: &InProcess) -> Answer {
    let body = json!({ "prompt": "You", "stream": true, "ignore_eos": true, "max_tokens": N_CTX - 8 });
    inner.request("/v1/completions", Some(body.to_string()))
}

fn n_busy(inner: &InProcess) -> usize {
    let slots: Value = serde_json::from_slice(&whole(inner.request("/slots", None)).unwrap()).unwrap();
    slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
}

#[test]
fn in_process_answers_equal_http_answers() {
    let (inner, server) = (start(), TestServer::start(|_| ()));
    let body = json!({ "prompt": "You", "max_tokens": 8, "temperature": 0 });
    let (ours, theirs) =
        (ask(&inner, "/v1/completions", &body).unwrap(), server.post("/v1/completions", &body).ok());
    assert_eq!(ours["choices"], theirs["choices"]);
    let refused = ask(&inner, "/v1/completions", &json!({ "prompt": "You", "top_p": 3 })).unwrap_err();
    assert_eq!(refused.status, 400);
    let said: Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!(said["error"]["param"], "top_p");
    assert_eq!(whole(inner.request("/nothing", None)).unwrap_err().status, 404);
    assert_eq!(whole(inner.request("no path", None)).unwrap_err().status, 400);
}

#[test]
fn cancelled_and_dropped_answers_end() {
    let inner = start();
    let (mut cancelled, mut dropped) = (endless(&inner), endless(&inner));
    for answer in [&mut cancelled, &mut dropped] {
        next(answer).unwrap().unwrap();
    }
    cancelled.cancel();
    drop(dropped);
    let begun = Instant::now();
    while n_busy(&inner) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    while let Some(piece) = next(&mut cancelled) {
        piece.unwrap();
    }
    // Dropping the server ends its answers.
    let mut open = endless(&inner);
    next(&mut open).unwrap().unwrap();
    drop(inner);
    let ended = std::iter::from_fn(|| next(&mut open)).take(10_000).count();
    assert!(ended < 10_000);
}

#[test]
fn start_fails_if_the_model_does_not_load() {
    let model = ModelSource::once("test", || Err("no such model".into()));
    let failed = InProcess::start(ServeOptions::default(), model);
    match failed {
        Err(ServeError::Load(err)) => assert_eq!(err.to_string(), "no such model"),
        Err(err) => panic!("{err}"),
        Ok(_) => panic!("it was loaded"),
    }
}

#[test]
fn in_process_server_takes_command_line_flags() {
    let path = support::golden("bitnet/tiny-i2_s.gguf").unwrap();
    let with = |flags: &[&str]| {
        let model = format!("--model={}", path.display());
        sterna::cli::in_process(flags.iter().map(|flag| (*flag).into()).chain([model.into()]))
    };
    let inner = with(&["--backend=cpu", "--threads=1", "--ctx-size=128", "--alias=tiny,gpt-4o"]).unwrap();
    let props: Value = serde_json::from_slice(&whole(inner.request("/props", None)).unwrap()).unwrap();
    assert_eq!(props["default_generation_settings"]["n_ctx"], 128);
    let model: Value =
        serde_json::from_slice(&whole(inner.request("/v1/models/gpt-4o", None)).unwrap()).unwrap();
    assert_eq!((&model["id"], &model["aliases"]), (&json!("tiny"), &json!(["gpt-4o"])));
    for (flags, said) in [
        (["--backend=cpu", "--port=1"], "--port: there is no listener"),
        (["--backend=cpu", "--kv-events=tcp://127.0.0.1:1"], "--kv-events: there is no listener"),
        (["--backend=cpu", "--models-max=2"], "--models-max: there is no listener"),
        (["--backend=cpu", "--no-such-flag"], "unexpected argument '--no-such-flag'"),
        (["--backend=cpu", "--ctx-size=-1"], "--ctx-size"),
        (["--backend=cpu", "--chat-template=nothing.jinja"], "nothing.jinja"),
    ] {
        let err = with(&flags).err().unwrap_or_default();
        assert!(err.contains(said) && !err.contains("Usage"), "{flags:?}: {err}");
    }
}
