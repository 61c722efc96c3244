//! Many clients, slow clients, clients that disconnect, and engines that fail.

use std::io::{BufRead, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sterna::backend::{self, BackendError};
use sterna::engine::{Engine, EngineOptions};
use sterna::gguf::Gguf;
use sterna::serve::ServeError;
use support::HookedBackend;

use super::client::{self, N_CTX, SLOTS, TestServer, read_head};

/// A request that differs from all others.
fn request(at: u64) -> Value {
    let prompt: Vec<u64> = (0..20 + 37 * at % 150).map(|i| (i * i * 7 + at * 131) % 500).collect();
    json!({
        "prompt": prompt, "n_predict": 3 + at % 9, "seed": at, "ignore_eos": true, "return_tokens": true,
        "temperature": if at.is_multiple_of(3) { 0.0 } else { 1.0 },
        "repeat_penalty": if at.is_multiple_of(2) { 1.0 } else { 1.3 },
    })
}

#[test]
fn concurrent_answers_equal_single_ones() {
    let server = TestServer::start(|_| ());
    let said = |at: u64| {
        let answer = server.post("/completion", &request(at)).ok();
        (answer["content"].clone(), answer["tokens"].clone())
    };
    let alone: Vec<_> = (0..16).map(said).collect();
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (said, alone, server) = (&said, &alone, &server);
            scope.spawn(move || {
                for at in [client, 15 - client, client + 8] {
                    assert_eq!(said(at), alone[at as usize], "request {at}");
                    // A client that disconnects in the middle of its answer.
                    let mut leaves = request(at + 20);
                    leaves["stream"] = true.into();
                    leaves["n_predict"] = 200.into();
                    let mut stream = server.begin("/completion", &leaves);
                    let mut line = String::new();
                    stream.read_line(&mut line).unwrap();
                }
            });
        }
    });
    server.until("all requests have ended", |server| server.metric("llamacpp:requests_processing") == 0.0);
    assert!(server.metric("vllm:request_success_total{finished_reason=\"abort\"}") >= 1.0);
}

/// A request for a streamed answer up to the end of the context.
fn endless() -> Value {
    json!({ "prompt": "You", "n_predict": -1, "ignore_eos": true, "stream": true, "n_probs": 20 })
}

#[test]
fn disconnected_client_frees_its_pages() {
    let slow = engine_that(|_| Act::Sleep(Duration::from_millis(20)));
    let server = TestServer::with_engine(slow, |options| options.cache_prompt = false);
    let mut stream = server.begin("/completion", &endless());
    assert_eq!(read_head(&mut stream).0, 200);
    let mut piece = [0; 64];
    stream.read_exact(&mut piece).unwrap();
    assert_eq!(server.metric("llamacpp:requests_processing"), 1.0, "the request has ended");
    drop(stream);
    server.until("it is cancelled", |server| server.metric("llamacpp:requests_processing") == 0.0);
    assert_eq!(server.metric("vllm:kv_cache_usage_perc"), 0.0);
    // A client that disconnects before its first token.
    let stream = server.begin("/completion", &endless());
    drop(stream);
    server.until("it is cancelled", |server| server.metric("llamacpp:requests_processing") == 0.0);
    // A client that disconnects while nothing is sent to it: at once, which looks like a client that only has
    // closed its writing side, and later.
    let aborted =
        |server: &TestServer| server.metric("vllm:request_success_total{finished_reason=\"abort\"}");
    let mut whole = endless();
    whole["stream"] = false.into();
    let generated = |server: &TestServer| server.metric("llamacpp:tokens_predicted_total");
    for n_tokens in [0.0, 8.0] {
        let before = aborted(&server);
        let stream = server.begin("/completion", &whole);
        server.until("it runs", |server| server.metric("llamacpp:requests_processing") == 1.0);
        let begun = generated(&server);
        server.until("it generates", |server| generated(server) >= begun + n_tokens);
        drop(stream);
        server.until("it is cancelled", |server| aborted(server) > before);
    }
    server.still_answers();
}

#[test]
fn client_may_disconnect_at_any_byte() {
    let server = TestServer::start(|_| ());
    let body = json!({ "prompt": "You may", "n_predict": -1, "ignore_eos": true, "stream": true });
    let request = client::request("/completion", "", body.to_string().as_bytes());
    for sent in 1..=request.len() {
        let mut stream = server.connect();
        stream.write_all(&request[..sent]).unwrap();
        drop(stream);
        if sent.is_multiple_of(16) {
            server.still_answers();
        }
    }
    server.until("all requests have ended", |server| server.metric("llamacpp:requests_processing") == 0.0);
    server.still_answers();
}

#[test]
fn full_queue_answers_with_retry_after() {
    let slow = engine_that(|_| Act::Sleep(Duration::from_millis(20)));
    let server = TestServer::with_engine(slow, |options| options.queue = 1);
    // One after the other, since the queue has one place.
    let begin = |_| {
        let mut stream = server.begin("/completion", &endless());
        assert_eq!(read_head(&mut stream).0, 200);
        stream
    };
    let streams: Vec<_> = (0..SLOTS).map(begin).collect();
    let waits = server.begin("/completion", &endless());
    server.until("one waits", |server| server.metric("llamacpp:requests_deferred") == 1.0);
    let refused =
        server.post("/v1/chat/completions", &json!({ "messages": [{ "role": "user", "content": "Hi" }] }));
    assert_eq!(refused.error(429)["code"], "queue_full");
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(server.get("/health").status, 200);
    drop((streams, waits));
    server.until("all requests have ended", |server| server.metric("llamacpp:requests_deferred") == 0.0);
    server.still_answers();
}

/// A request whose answer is longer than what the system buffers for a client that does not read.
fn long() -> Value {
    let prompts: Vec<[u32; 2]> = (0..64).map(|at| [5, 6 + at]).collect();
    json!({ "prompt": prompts, "n_predict": 90, "ignore_eos": true, "temperature": 0, "n_probs": 20 })
}

fn streamed(mut body: Value) -> Value {
    body["stream"] = true.into();
    body
}

#[test]
fn late_reader_gets_the_whole_answer() {
    let server = TestServer::start(|_| ());
    let mut late = server.begin("/completion", &streamed(long()));
    let generated = |server: &TestServer| server.metric("llamacpp:tokens_predicted_total");
    server.until("its sequences pause", |server| {
        let before = generated(server);
        std::thread::sleep(Duration::from_millis(100));
        before > 0.0 && generated(server) == before
    });
    let total = 64.0 * 90.0;
    assert!(generated(&server) < total, "everything was generated before anything was read");
    // Others are answered meanwhile.
    server.still_answers();
    let mut text = String::new();
    late.read_to_string(&mut text).unwrap();
    let mut contents = vec![String::new(); 64];
    for data in text.lines().filter_map(|line| line.strip_prefix("data: ")) {
        let piece: Value = serde_json::from_str(data).unwrap();
        contents[piece["index"].as_u64().unwrap() as usize] += piece["content"].as_str().unwrap();
    }
    let mut plain = long();
    plain["n_probs"] = 0.into();
    plain["prompt"].as_array_mut().unwrap().truncate(8);
    for (at, answer) in server.post("/completion", &plain).ok().as_array().unwrap().iter().enumerate() {
        assert_eq!(answer["content"], contents[at], "prompt {at}");
    }
}

#[test]
fn client_that_never_reads_is_dropped() {
    let server = TestServer::start(|options| options.write_time = Duration::from_millis(300));
    let never = server.begin("/completion", &streamed(long()));
    server.until("it is dropped", |server| {
        server.metric("vllm:request_success_total{finished_reason=\"abort\"}") > 0.0
            && server.metric("llamacpp:requests_processing") == 0.0
    });
    server.still_answers();
    drop(never);
}

#[test]
fn shutdown_lets_answers_finish() {
    let server = TestServer::start(|_| ());
    let mut body = endless();
    body["n_predict"] = 40.into();
    let mut stream = server.begin("/completion", &body);
    assert_eq!(read_head(&mut stream).0, 200);
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    });
    server.stop().unwrap();
    let text = reader.join().unwrap();
    assert!(text.contains("\"stop\":true"), "{text}");
}

#[test]
fn shutdown_ends_answers_with_an_error_after_drain_time() {
    let server = TestServer::with_engine(engine_that(|_| Act::Sleep(Duration::from_millis(20))), |options| {
        options.drain_time = Duration::from_millis(50)
    });
    let mut stream = server.begin("/completion", &endless());
    assert_eq!(read_head(&mut stream).0, 200);
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = stream.read_to_string(&mut text);
        text
    });
    server.stop().unwrap();
    let text = reader.join().unwrap();
    assert!(text.contains("\"error\"") && text.contains("shutting down"), "{text}");
}

#[test]
fn transient_device_error_is_retried() {
    let server =
        TestServer::with_engine(engine_that(|run| if run == 4 { Act::Fail } else { Act::Run }), |_| ());
    let body = json!({ "prompt": "You may", "n_predict": 8, "seed": 1, "ignore_eos": true });
    let answer = server.post("/completion", &body).ok();
    let alone = TestServer::start(|_| ());
    assert_eq!(answer["content"], alone.post("/completion", &body).ok()["content"]);
}

#[test]
fn persistent_device_error_fails_only_requests() {
    let server = TestServer::with_engine(
        engine_that(|run| if (4..7).contains(&run) { Act::Fail } else { Act::Run }),
        |_| (),
    );
    let body = json!({ "prompt": "You may", "n_predict": 8, "ignore_eos": true });
    let error = server.post("/completion", &body).error(500);
    assert!(error["message"].as_str().unwrap().contains("on purpose"), "{error}");
    server.still_answers();
}

#[test]
fn engine_panic_ends_requests_and_server() {
    let server =
        TestServer::with_engine(engine_that(|run| if run == 4 { Act::Panic } else { Act::Run }), |_| ());
    let plain = json!({ "prompt": "You may", "n_predict": 8, "ignore_eos": true });
    let error = server.post("/completion", &plain).error(500);
    assert_eq!(error["type"], "server_error");
    let ended = server.wait();
    assert!(matches!(&ended, Err(ServeError::Panicked(said)) if said.contains("on purpose")), "{ended:?}");
}

#[test]
fn hung_engine_ends_requests_and_server() {
    let hangs = |run| if run == 4 { Act::Sleep(Duration::from_secs(600)) } else { Act::Run };
    let server = TestServer::with_engine(engine_that(hangs), |options| {
        options.step_time = Some(Duration::from_millis(300));
    });
    let begun = std::time::Instant::now();
    let mut body = json!({ "prompt": "You may", "n_predict": 60, "ignore_eos": true, "stream": true });
    let mut streams = vec![server.begin("/completion", &body)];
    body["stream"] = false.into();
    streams.push(server.begin("/completion", &body));
    let mut texts = vec![String::new(); 2];
    for (stream, text) in streams.iter_mut().zip(&mut texts) {
        let _ = stream.read_to_string(text);
    }
    assert!(texts.iter().all(|text| !text.contains("\"stop\":true")), "{texts:?}");
    let ended = server.wait();
    assert!(matches!(&ended, Err(ServeError::Hung(_))), "{ended:?}");
    assert!(begun.elapsed() < Duration::from_secs(300), "the clients waited for the end of the step");
}

/// The action of a run.
pub enum Act {
    Run,
    Sleep(Duration),
    Fail,
    Panic,
}

/// An engine in which `act` chooses the action of each run by its number.
pub fn engine_that(act: impl Fn(usize) -> Act + Send + Sync + 'static) -> Engine {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let options = EngineOptions { n_ctx: Some(N_CTX), n_seqs: SLOTS, batch: 64, ..EngineOptions::default() };
    let runs = AtomicUsize::new(0);
    let before = move |call: &'static str| match call {
        "run" => match act(runs.fetch_add(1, Ordering::Relaxed)) {
            Act::Run => Ok(()),
            Act::Sleep(time) => {
                std::thread::sleep(time);
                Ok(())
            }
            Act::Fail => Err(BackendError::Device { backend: "hooked", call, detail: "on purpose".into() }),
            Act::Panic => panic!("on purpose"),
        },
        _ => Ok(()),
    };
    let hooked = HookedBackend::new(backend::open("cpu", 1).unwrap(), before);
    Engine::on_backend(Gguf::open(&path).unwrap(), &options, Box::new(hooked), |_| ()).unwrap()
}
