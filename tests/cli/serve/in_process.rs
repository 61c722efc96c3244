//! A server without a listener: it gives the same answers, which can be cancelled.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::task::Poll;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sterna::engine::SamplerOptions;
use sterna::serve::{Answer, InProcess, Loaded, ModelSource, Piece, ServeError, ServeOptions};

use super::client::{TestServer, engine};

/// Context length of a text that does not end while a test runs.
const N_CTX: usize = 4096;

fn start() -> InProcess {
    let load = || Ok(Loaded { engine: engine(N_CTX), sampler: SamplerOptions::default(), speculation: None });
    InProcess::start(ServeOptions::default(), ModelSource::once("test", load)).unwrap()
}

fn next(answer: &mut Answer) -> Option<Piece> {
    match answer.next_within(Duration::from_secs(60)) {
        Poll::Ready(next) => next,
        Poll::Pending => panic!("no answer"),
    }
}

/// Status and body of an answer.
fn whole(mut answer: Answer) -> (u16, Vec<u8>) {
    let Some(Piece::Head { status, .. }) = next(&mut answer) else { panic!("no head") };
    let mut all = Vec::new();
    while let Some(Piece::Body(piece)) = next(&mut answer) {
        all.extend_from_slice(&piece);
    }
    (status, all)
}

fn post(inner: &InProcess, path: &str, body: &Value) -> Answer {
    inner.request("POST", path, &[("content-type", "application/json")], body.to_string().into())
}

fn get(inner: &InProcess, path: &str) -> (u16, Value) {
    let (status, body) = whole(inner.request("GET", path, &[], Vec::new()));
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

fn ask(inner: &InProcess, path: &str, body: &Value) -> (u16, Value) {
    let (status, body) = whole(post(inner, path, body));
    (status, serde_json::from_slice(&body).unwrap())
}

/// Starts a text that is generated until it is cancelled.
fn endless(inner: &InProcess) -> Answer {
    let body = json!({ "prompt": "You", "stream": true, "ignore_eos": true, "max_tokens": N_CTX - 8 });
    post(inner, "/v1/completions", &body)
}

/// Waits for the head and the first event.
fn begin(answer: &mut Answer) {
    assert!(matches!(next(answer), Some(Piece::Head { status: 200, .. })));
    assert!(matches!(next(answer), Some(Piece::Body(_))));
}

fn n_busy(inner: &InProcess) -> usize {
    get(inner, "/slots").1.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
}

#[test]
fn in_process_answers_equal_http_answers() {
    let (inner, server) = (start(), TestServer::start(|_| ()));
    let body = json!({ "prompt": "You", "max_tokens": 8, "temperature": 0 });
    let (ours, theirs) = (ask(&inner, "/v1/completions", &body), server.post("/v1/completions", &body).ok());
    assert_eq!((ours.0, &ours.1["choices"]), (200, &theirs["choices"]));
    let (status, said) = ask(&inner, "/v1/completions", &json!({ "prompt": "You", "top_p": 3 }));
    assert_eq!((status, &said["error"]["param"]), (400, &json!("top_p")));
    assert_eq!(get(&inner, "/nothing").0, 404);
    for (method, path, header) in
        [("GET", "no path", ("a", "b")), ("GE T", "/", ("a", "b")), ("GET", "/", ("", "b"))]
    {
        let (status, said) = whole(inner.request(method, path, &[header], Vec::new()));
        assert!(status == 400 && !said.is_empty());
    }
}

#[test]
fn in_process_server_listens_too() {
    let inner = start();
    let listening = inner.listen(([127, 0, 0, 1], 0).into()).unwrap();
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(listening.address())?;
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut said = String::new();
        stream.read_to_string(&mut said)?;
        Ok(said)
    };
    assert!(ask().unwrap().ends_with("{\"status\":\"ok\"}"));
    let err = inner.listen(([0, 0, 0, 0], 0).into()).err().unwrap();
    assert!(err.to_string().contains("only loopback addresses"), "{err}");
    assert_eq!(get(&inner, "/health").0, 200);
}

#[test]
fn unread_texts_are_generated_to_their_end() {
    let inner = start();
    // More than the updates that the engine keeps for a reader over HTTP.
    let body = json!({ "prompt": "You", "stream": true, "ignore_eos": true, "max_tokens": 600 });
    let unread = post(&inner, "/v1/completions", &body);
    let begun = Instant::now();
    while n_busy(&inner) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    while n_busy(&inner) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    let (status, text) = whole(unread);
    let events = String::from_utf8(text).unwrap();
    assert_eq!(status, 200);
    assert!(events.contains("\"predicted_n\":600") && events.ends_with("data: [DONE]\n\n"), "{events}");
}

#[test]
fn cancelled_and_dropped_answers_end() {
    let inner = start();
    let (mut cancelled, mut dropped) = (endless(&inner), endless(&inner));
    for answer in [&mut cancelled, &mut dropped] {
        begin(answer);
    }
    cancelled.canceller().cancel();
    drop(dropped);
    let begun = Instant::now();
    while n_busy(&inner) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    while next(&mut cancelled).is_some() {}
    // Dropping the server ends its answers.
    let mut open = endless(&inner);
    begin(&mut open);
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
    let (_, props) = get(&inner, "/props");
    assert_eq!(props["default_generation_settings"]["n_ctx"], 128);
    // Sixteen sequences share the KV cache of four.
    assert_eq!(props["total_slots"], 16);
    let (_, model) = get(&inner, "/v1/models/gpt-4o");
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
        assert!(err.contains(said) && !err.contains("Usage") && !err.contains("--help"), "{flags:?}: {err}");
    }
    let flags = sterna::cli::in_process_flags();
    let flag = |name: &str| flags.iter().find(|flag| flag.names.iter().any(|known| known == name));
    assert_eq!(flag("ctx-size").unwrap().values, (1, 1));
    assert_eq!(flag("no-cache-prompt").unwrap().values, (0, 0));
    assert!(flag("max-num-seqs").unwrap().names[0] == "parallel" && flag("mmap").unwrap().help.is_none());
    assert!(flag("port").is_none() && flag("models-max").is_none() && flag("help").is_none());
}
