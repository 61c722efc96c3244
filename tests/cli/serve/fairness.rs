//! One client cannot keep the server from others: compressed and large bodies, idle connections, a full
//! queue.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Answer, SLOTS, TestServer, read_head, request, send};
use super::load::{Act, engine_that};

/// The body of a request to any endpoint in each coding, by Node.js and the zstd command.
const CODED: &[(&str, &str)] = &[
    (
        "gzip",
        "1f8b080000000000020355cc410a02310c46e1abc8bfeec66d4ee01544642833518a4d529a149461ee2ebaebf2\
         7d8bb7436ce30a4214fd20a1759316205c6d9c24ff68350dd6d98ab6318bb07b7eb2836e3bba55066138f769\
         702938ee0992df4bd88bd541e7045d5ae7adacf12f8fce59408f5c9d8f2f41e0f5bba1000000",
    ),
    (
        "deflate",
        "78da55cc410a02310c46e1abc8bfeec66d4ee01544642833518a4d529a149461ee2ebaebf27d8bb7436ce30a\
         4214fd20a1759316205c6d9c24ff68350dd6d98ab6318bb07b7eb2836e3bba55066138f769702938ee0992df\
         4bd88bd541e7045d5ae7adacf12f8fce59408f5c9d8f2fca2c357a",
    ),
    (
        "br",
        "1ba000a08cc374a33d7f84706dda14416e4b955d689446a8ccc0888617a6bae998adc3d2d55727070eff82f4\
         76c0c08333071cb80d3f8fbbc88899168b91f553e63962dea8e349d13f19cc1636a78acbb02d7c8c13d37f95\
         dd97e86fcb6f5de41cedf9519085a0d93f",
    ),
    (
        "zstd",
        "28b52ffd24a14d030032071611907d8c811ca44ff1487b3eebc30c33b3109ddd98da789998c517abb798ad68\
         7e10e3ef649062a493fc70fa3f62d9cd3f9e456a9f9bf197b9742f93b9ce37199e547df89d24c8b4fc785c25\
         b5f5c3eff9f08f8f6c51f93c0400c7080e021fa3a69c75f22c032496a065",
    ),
    (
        "gzip, br",
        "0b3f801f8b080000000000000355cc410a02310c46e1abc8bfeec66d4ee01544642833518a4d529a149461ee\
         2ebaebf27d8bb7436ce30a4214fd20a1759316205c6d9c24ff68350dd6d98ab6318bb07b7eb2836e3bba5506\
         6138f769702938ee0992df4bd88bd541e7045d5ae7adacf12f8fce59408f5c9d8f2f41e0f5bba100000003",
    ),
];

/// 9 MiB of zeros, by gzip twice.
const BOMB: &str = "1f8b0800000000000203edd8bd11c1701c80e15fc49d50300266b0431a8d46ad50650ab9536ab2883343a6c8\
     d9216ce0eb3f86dcf354ef0ceff2524432cafb36cb7e5537efdbb398050000003070f5fd9ca71910ab4f57ee\
     f6000000c0d0558bf934bd80f1ebf4986ccc11f84787eb767d8c68e20b1335bff0f4230000";

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

#[test]
fn compressed_bodies_are_read_or_refused_by_name() {
    let server = TestServer::start(|_| ());
    let ask = |path: &str, coding: &str, body: &[u8]| {
        server.post_with(path, &format!("Content-Encoding: {coding}\r\n"), body)
    };
    for (coding, hex) in CODED {
        assert_eq!(ask("/completion", coding, &bytes(hex)).ok()["tokens_predicted"], 1, "{coding}");
    }
    let gzip = bytes(CODED[0].1);
    for path in [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/api/embed",
        "/api/show",
        "/tokenize",
        "/apply-template",
    ] {
        assert_eq!(ask(path, "x-gzip", &gzip).status, 200, "{path}");
        let refused = ask(path, "gzip, compress", &gzip);
        assert_eq!(
            (refused.status, refused.text.contains("compress")),
            (415, true),
            "{path}: {}",
            refused.text
        );
        assert_eq!(refused.header("accept-encoding"), Some("gzip, deflate, br, zstd, identity"), "{path}");
    }
    assert_eq!(ask("/completion", "identity", br#"{"prompt": "You", "n_predict": 1}"#).status, 200);
    assert_eq!(
        ask("/completion", "gzip", &gzip[..gzip.len() - 1]).error(400)["type"],
        "invalid_request_error"
    );
    assert_eq!(ask("/completion", "br", b"{}").status, 400);
    assert_eq!(ask("/completion", "gzip, gzip", &bytes(BOMB)).status, 413);
}

#[test]
fn large_bodies_are_read_within_bounds() {
    let server = TestServer::start(|_| ());
    let padding = "x".repeat(300 << 10);
    let with_padding = |mut body: Value| {
        body["unread"] = padding.as_str().into();
        body
    };
    let plain = json!({ "prompt": "You", "n_predict": 2, "seed": 1 });
    let answer = server.post("/completion", &with_padding(plain.clone())).ok();
    assert_eq!(answer["content"], server.post("/completion", &plain).ok()["content"]);
    assert_eq!(server.post("/tokenize", &with_padding(json!({ "content": "You" }))).status, 200);
    // Small objects take much more memory than their text.
    let objects = format!("{{\"content\": \"x\", \"z\": [{}0]}}", "{\"\":0},".repeat(200_000));
    for path in ["/tokenize", "/completion", "/v1/chat/completions", "/v1/messages", "/api/generate"] {
        let answer = server.post_with(path, "", objects.as_bytes());
        assert!(answer.status == 413 && answer.text.contains("JSON values"), "{path}: {}", answer.text);
    }
    // Texts that cannot fit the context are refused before they are tokenised.
    let long = "You may ".repeat(200_000);
    let talk = json!([{ "role": "user", "content": long }]);
    for (path, body) in [
        ("/completion", json!({ "prompt": long })),
        ("/v1/completions", json!({ "prompt": ["You", long] })),
        ("/v1/chat/completions", json!({ "messages": talk })),
        ("/v1/embeddings", json!({ "input": long })),
        ("/v1/responses", json!({ "input": long })),
    ] {
        assert_eq!(server.post(path, &body).error(400)["code"], "context_length_exceeded", "{path}");
    }
    for (path, body) in [
        ("/v1/messages", json!({ "messages": talk, "max_tokens": 1 })),
        ("/api/generate", json!({ "prompt": long, "raw": true })),
        ("/api/chat", json!({ "messages": talk })),
    ] {
        let refused = server.post(path, &body);
        assert_eq!((refused.status, refused.text.contains("too long")), (400, true), "{path}");
    }
    let error = server.post("/tokenize", &json!({ "content": long })).error(400);
    assert!(error["message"].as_str().unwrap().contains("want a text of at most"), "{error}");
}

/// True if the server has sent something, or has closed the connection.
fn has_news(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let peeked = stream.peek(&mut [0]);
    stream.set_nonblocking(false).unwrap();
    !peeked.is_err_and(|err| err.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn unfinished_bodies_are_bounded_in_sum() {
    let server = TestServer::start(|options| options.max_body_bytes = 128 << 10);
    let whole = request("/completion", "", &vec![b' '; 128 << 10]);
    let mut unfinished: Vec<TcpStream> = (0..17).map(|_| server.connect()).collect();
    unfinished.iter_mut().for_each(|stream| stream.write_all(&whole[..whole.len() - 1]).unwrap());
    server.until("one is refused", |_| unfinished.iter().any(has_news));
    let at = unfinished.iter().position(has_news).unwrap();
    let mut refused = unfinished.remove(at);
    refused.write_all(b" ").unwrap();
    assert_eq!(Answer::read(refused).error(429)["code"], "too_many_bytes");
    server.still_answers();
}

#[test]
fn full_queue_has_a_place_for_each_key() {
    let slow = engine_that(|_| Act::Sleep(Duration::from_millis(10)));
    let server = TestServer::with_engine(slow, |options| {
        options.queue = 2;
        options.keys = vec!["first".into(), "second".into()];
    });
    let deferred = |n: f64| {
        let get = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nx-api-key: first\r\nConnection: close\r\n\r\n";
        let line = format!("llamacpp:requests_deferred {n}");
        server.until(&line, |server| server.send(get).text.lines().any(|found| found == line));
    };
    let begin = |key: &str, n: usize| {
        let mut stream = server.connect();
        let body = json!({ "prompt": "You", "n_predict": n, "ignore_eos": true, "stream": true });
        send(&mut stream, "/completion", &format!("x-api-key: {key}\r\n"), body.to_string().as_bytes());
        stream
    };
    // One after the other, so that each has left the queue.
    let run = |_| {
        let mut stream = std::io::BufReader::new(begin("first", 300));
        assert_eq!(read_head(&mut stream).0, 200);
        stream
    };
    let running: Vec<_> = (0..SLOTS).map(run).collect();
    let older = begin("first", 2);
    deferred(1.0);
    let newer = begin("first", 2);
    deferred(2.0);
    assert_eq!(Answer::read(begin("first", 2)).error(429)["code"], "queue_full");
    // The second key has fewer: it gets the place of the newest request of the first.
    let waiting = [newer, older].map(|displaced| {
        let waits = begin("second", 2);
        let error = Answer::read(displaced).error(429);
        assert!(error["message"].as_str().unwrap().contains("fewer requests"), "{error}");
        waits
    });
    assert_eq!(Answer::read(begin("second", 2)).error(429)["code"], "queue_full");
    drop(running);
    waiting.into_iter().for_each(|waits| assert_eq!(Answer::read(waits).status, 200));
}

#[test]
fn idle_connections_give_up_their_places() {
    let slow = engine_that(|_| Act::Sleep(Duration::from_millis(10)));
    let server = TestServer::with_engine(slow, |options| options.max_connections = 4);
    let body = json!({ "prompt": "You", "n_predict": 150, "ignore_eos": true, "stream": true });
    let mut answered = server.begin("/completion", &body);
    assert_eq!(read_head(&mut answered).0, 200);
    let head = "POST /completion HTTP/1.1\r\nHost: localhost\r\n";
    for begun in ["", head, &format!("{head}Content-Length: 100\r\n\r\n{{")] {
        let mut idle: Vec<TcpStream> = (0..4).map(|_| server.connect()).collect();
        idle.iter_mut().for_each(|stream| stream.write_all(begun.as_bytes()).unwrap());
        server.still_answers();
        server.until("the oldest is closed", |_| has_news(&idle[0]));
    }
    let mut kept: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
    for stream in &mut kept {
        stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let _ = stream.read(&mut [0; 2000]);
    }
    server.still_answers();
    // The connection that was being answered has stayed.
    let mut text = String::new();
    answered.read_to_string(&mut text).unwrap();
    assert!(text.contains("\"stop\":true"), "{text}");
}
