//! A scripted attacker: many kinds of attack at once from one client, while another client is served.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::client::{Answer, TestServer, request, send};

const ATTACKER: &str = "Authorization: Bearer attacker\r\n";
const CLIENT: &str = "Authorization: Bearer client\r\n";

/// An attack, by a number that varies it.
type Attack = fn(&TestServer, usize);

const ATTACKS: &[(&str, Attack)] = &[
    ("grammars", grammars),
    ("bodies", bodies),
    ("connections", connections),
    ("abandoned streams", abandoned_streams),
    ("fields", fields),
    ("heads", heads),
];

fn ask(server: &TestServer, key: &str, path: &str, body: &Value) -> Answer {
    let mut stream = server.connect();
    send(&mut stream, path, key, body.to_string().as_bytes());
    Answer::read(stream)
}

/// An attack gets an answer of some kind, but no error of the server's own.
fn attack_with(server: &TestServer, path: &str, body: &Value) {
    let answer = ask(server, ATTACKER, path, body);
    assert!(answer.status < 500 || answer.status == 503, "{path}: {} {}", answer.status, answer.text);
}

/// Grammars that grow without a bound when they are compiled, or whose masks do.
fn grammars(server: &TestServer, at: usize) {
    let doubling: String = (0..16).map(|i| format!("a{i} ::= a{0} a{0}\n", i + 1)).collect();
    let constraint = [
        json!({ "grammar": format!("root ::= a0\n{doubling}a16 ::= [a-z]") }),
        json!({ "grammar": "root ::= s\ns ::= s s | s s s | [a-z ]" }),
        json!({ "json_schema": { "type": "integer", "multipleOf": 99_999_989 } }),
        json!({ "json_schema": { "type": "string", "pattern": "^((a{1,50}){1,50}){1,50}$" } }),
    ];
    let mut body = json!({ "prompt": "You", "n_predict": 40, "min_tokens": 39 });
    let constraint = constraint[at % constraint.len()].as_object().unwrap().clone();
    body.as_object_mut().unwrap().extend(constraint);
    attack_with(server, "/completion", &body);
}

/// Large bodies: objects, depth, a text, and numbers.
fn bodies(server: &TestServer, at: usize) {
    let body = match at % 4 {
        0 => format!("[{}0]", "{\"\":0},".repeat(400_000)),
        1 => "[".repeat(4 << 20),
        2 => json!({ "prompt": "You may ".repeat(200_000) }).to_string(),
        _ => json!({ "prompt": vec![1; 500_000] }).to_string(),
    };
    let mut stream = server.connect();
    send(&mut stream, ["/completion", "/tokenize"][at / 4 % 2], ATTACKER, body.as_bytes());
    let answer = Answer::read(stream);
    assert!((200..500).contains(&answer.status), "{} {}", answer.status, answer.text);
}

/// Connections that send nothing, half a head, or half a body.
fn connections(server: &TestServer, at: usize) {
    let whole = request("/completion", ATTACKER, &[b' '; 1000]);
    let held: Vec<_> = (0..24)
        .map(|i| {
            let mut stream = server.connect();
            let _ = stream.write_all(&whole[..(i + at) % 3 * (whole.len() - 1) / 2]);
            stream
        })
        .collect();
    for stream in &held[..8] {
        let _ = stream.shutdown(Shutdown::Write);
    }
}

/// Streams that are closed after a few bytes, more than the queue has places for.
fn abandoned_streams(server: &TestServer, at: usize) {
    let body =
        json!({ "prompt": "You", "n_predict": 200, "ignore_eos": true, "stream": true, "n": 1 + at % 3 });
    let mut streams: Vec<_> = (0..12)
        .map(|_| {
            let mut stream = server.connect();
            send(&mut stream, "/completion", ATTACKER, body.to_string().as_bytes());
            stream
        })
        .collect();
    let _ = streams[at % 12].read(&mut [0; 64]);
}

/// Fields that stand for much more than their size.
fn fields(server: &TestServer, at: usize) {
    let all = [
        json!({ "prompt": "You", "logit_bias": [["ab ".repeat(100_000), 1]] }),
        json!({ "prompt": "You", "stop": vec!["x"; 100_000] }),
        json!({ "prompt": vec!["You"; 100_000] }),
        json!({ "prompt": "You", "n": 1_000_000_000 }),
        json!({ "prompt": "You", "n_probs": 1_000_000_000 }),
    ];
    attack_with(server, "/completion", &all[at % all.len()]);
}

/// Heads that name other hosts, origins and keys, or that never end.
fn heads(server: &TestServer, at: usize) {
    let long = format!("X: {}\r\n", "y".repeat(1 << 20));
    let lines = [
        "Host: evil.example\r\n",
        "Host: localhost\r\nHost: evil.example\r\n",
        "Origin: http://evil.example\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Authorization: Bearer guess\r\n",
        &long,
    ];
    let headers = lines[at % lines.len()];
    let key = if headers.starts_with("Auth") { "" } else { ATTACKER };
    let mut stream = server.connect();
    send(&mut stream, "/completion", &format!("{headers}{key}"), br#"{"prompt": "You", "n_predict": 1}"#);
    // A head that is too long may be refused by closing the connection.
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{headers:.40}: {answer}");
}

/// Runs every attack `rounds` times, all kinds at once, while a client asks.
fn survive(rounds: usize) {
    let server = TestServer::start(|options| {
        options.keys = vec!["attacker".into(), "client".into()];
        options.queue = 8;
        options.max_connections = 64;
    });
    let body = json!({ "prompt": "You", "n_predict": 4, "seed": 1, "temperature": 1.0 });
    let schema = json!({ "type": "object", "properties": { "a": { "enum": ["x"] } }, "required": ["a"] });
    let constrained = json!({ "prompt": "You", "n_predict": 30, "json_schema": schema });
    let alone = ask(&server, CLIENT, "/completion", &body).ok()["content"].clone();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let attackers: Vec<_> = ATTACKS
            .iter()
            .map(|(_, attack)| scope.spawn(|| (0..rounds).for_each(|at| attack(&server, at))))
            .collect();
        let client = scope.spawn(|| {
            loop {
                let answer = ask(&server, CLIENT, "/completion", &body);
                assert_eq!(answer.ok()["content"], alone);
                let answer = ask(&server, CLIENT, "/completion", &constrained).ok();
                let value: Value = serde_json::from_str(answer["content"].as_str().unwrap()).unwrap();
                assert_eq!(value, json!({ "a": "x" }));
                let health =
                    server.send("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
                assert_eq!(health.status, 200);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let ended: Vec<_> = attackers.into_iter().map(|attacker| attacker.join()).collect();
        is_over.store(true, Ordering::Relaxed);
        for ((name, _), ended) in ATTACKS.iter().zip(ended) {
            assert!(ended.is_ok(), "{name}");
        }
        client.join().expect("the client is served");
    });
    let metric = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nx-api-key: client\r\nConnection: close\r\n\r\n";
    server.until("nothing of the attacker runs", |server| {
        let text = server.send(metric).text;
        ["llamacpp:requests_processing 0", "llamacpp:requests_deferred 0"]
            .iter()
            .all(|line| text.lines().any(|found| found == *line))
    });
}

#[test]
fn client_is_served_during_attacks() {
    survive(2);
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn client_is_served_during_long_attacks() {
    survive(60);
}
