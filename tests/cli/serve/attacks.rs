//! Attacks that have worked on other servers, with their CVE numbers if they have one. Each is answered with
//! 400 or a similar status and has no other effect: a good request after it is answered as usual.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};

use super::client::{Answer, TestServer};

/// The status has to be 200 or 400, not a server error.
fn assert_no_server_error(answer: &Answer, what: &dyn std::fmt::Display) {
    assert!([200, 400].contains(&answer.status), "{what}: {} {}", answer.status, answer.text);
}

/// CVE-2026-21869 (llama.cpp, a negative `n_discard`), CVE-2026-34756 (vLLM, `n`), CVE-2024-8939 (`best_of`).
#[test]
fn extreme_numbers_do_no_harm() {
    let server = TestServer::start(|_| ());
    let fields = [
        "best_of",
        "dry_allowed_length",
        "id_slot",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "min_keep",
        "min_tokens",
        "mirostat",
        "n",
        "n_cmpl",
        "n_discard",
        "n_indent",
        "n_keep",
        "n_predict",
        "n_probs",
        "num_ctx",
        "priority",
        "repeat_last_n",
        "seed",
        "t_max_predict_ms",
        "thinking_token_budget",
        "top_k",
        "top_logprobs",
        "truncate_prompt_tokens",
    ];
    let talk = json!([{ "role": "user", "content": "Hi" }]);
    let bodies = [
        ("/completion", json!({ "prompt": "You", "n_predict": 1 }), ""),
        ("/v1/completions", json!({ "prompt": "You", "max_tokens": 1 }), ""),
        ("/v1/chat/completions", json!({ "messages": talk, "max_tokens": 1 }), ""),
        ("/v1/messages", json!({ "messages": talk, "max_tokens": 1 }), ""),
        ("/v1/responses", json!({ "input": "Hi", "max_output_tokens": 1 }), ""),
        (
            "/api/chat",
            json!({ "messages": talk, "stream": false, "options": { "num_predict": 1 } }),
            "options",
        ),
    ];
    let values = [json!(i64::MIN), json!(-5), json!(u64::MAX), json!(1e308)];
    for (path, body, inner) in &bodies {
        for field in fields {
            // `/completion` reads all of these fields. The other APIs share most of the parser.
            let few = if *path == "/completion" { &values[..] } else { &values[2..] };
            for value in few {
                let mut body = body.clone();
                let holder = if inner.is_empty() { &mut body } else { &mut body[*inner] };
                holder[field] = value.clone();
                // Otherwise an answer without a limit would fill the context.
                body["ignore_eos"] = false.into();
                assert_no_server_error(&server.post(path, &body), &format!("{path} {field} {value}"));
            }
        }
    }
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": "You", "best_of": 1_000_000_000 })),
        ("/v1/chat/completions", json!({ "messages": talk, "n": 1_000_000_000 })),
        ("/completion", json!({ "prompt": vec!["You"; 65] })),
        ("/completion", json!({ "prompt": "You", "logit_bias": vec![json!([1, 1]); 1025] })),
    ] {
        assert_eq!(server.post(path, &body).status, 400, "{path}");
    }
    let tools = vec![json!({ "type": "function", "function": { "name": "f" } }); 257];
    let body = json!({ "messages": talk, "tools": tools });
    assert_eq!(server.post("/v1/chat/completions", &body).error(400)["param"], "tools");
    server.still_answers();
}

/// CVE-2025-48942 to 48944 (vLLM, schemas and regexes that crash the engine), llama.cpp 22606 (recursion).
#[test]
fn malicious_grammars_do_no_harm() {
    let server = TestServer::start(|_| ());
    let chain = |n: usize| {
        let mut defs: Vec<(String, Value)> =
            (0..n).map(|at| (format!("d{at}"), json!({ "$ref": format!("#/$defs/d{}", at + 1) }))).collect();
        defs.push((format!("d{n}"), json!({ "type": "null" })));
        json!({ "$defs": defs.into_iter().collect::<serde_json::Map<_, _>>(), "$ref": "#/$defs/d0" })
    };
    let deep = (0..50).fold(json!({}), |inner, _| json!({ "type": "array", "items": inner }));
    let brackets = format!("{}a{}", "(".repeat(5000), ")".repeat(5000));
    let refused = [
        json!({ "type": "no such" }),
        json!({ "type": 3 }),
        json!({ "type": "string", "pattern": "(" }),
        json!({ "type": "string", "pattern": brackets }),
        json!({ "$ref": "file:///etc/passwd" }),
        json!({ "$ref": "http://127.0.0.1/a" }),
        json!({ "$ref": "#/$defs/none" }),
        chain(5000),
    ];
    let odd = [
        json!({ "properties": [] }),
        json!({ "$ref": "#" }),
        json!({ "enum": [] }),
        json!({ "minItems": -1 }),
        deep,
        chain(50),
    ];
    let ask = |more: Value| {
        let mut body = json!({ "messages": [{ "role": "user", "content": "Go." }], "max_tokens": 2 });
        more.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        server.post("/v1/chat/completions", &body)
    };
    let short = |value: &Value| value.to_string().chars().take(60).collect::<String>();
    for schema in &refused {
        let format = json!({ "type": "json_schema", "json_schema": { "schema": schema, "strict": true } });
        assert_eq!(ask(json!({ "response_format": format })).status, 400, "{}", short(schema));
    }
    for schema in refused.iter().chain(&odd) {
        let tool = json!({ "type": "function", "function": { "name": "f", "parameters": schema } });
        assert_no_server_error(&ask(json!({ "tools": [tool] })), &short(schema));
        assert_no_server_error(&ask(json!({ "json_schema": schema })), &short(schema));
    }
    for (name, grammar) in [
        ("grammar", format!("root ::= {brackets}")),
        ("grammar", "root ::= nowhere".into()),
        ("grammar", "root ::= \"a\"{1000000000}".into()),
        ("grammar", format!("%llguidance {{}}\nstart: {brackets}")),
        ("guided_regex", brackets.clone()),
        ("guided_regex", "(?=a)b".into()),
    ] {
        assert_eq!(ask(json!({ name: grammar })).status, 400, "{name} {}", short(&grammar.into()));
    }
    assert_no_server_error(&ask(json!({ "guided_regex": "(a{1000}){1000}{1000}" })), &"a large regex");
    server.still_answers();
}

/// CVE-2024-8768 (vLLM, an empty prompt).
#[test]
fn empty_prompts_do_no_harm() {
    let server = TestServer::start(|_| ());
    let eos = server.get("/props").ok()["eos_token"].as_str().unwrap_or("<|eot_id|>").to_owned();
    for prompt in [json!(""), json!([]), json!([[]]), json!([""]), json!([[], []]), json!(null), json!(eos)] {
        for path in ["/completion", "/v1/completions"] {
            let body = json!({ "prompt": prompt, "max_tokens": 1, "n_predict": 1 });
            assert_no_server_error(&server.post(path, &body), &format!("{path} {prompt}"));
        }
        assert_no_server_error(
            &server.post(
                "/api/generate",
                &json!({ "prompt": prompt, "raw": true, "stream": false,
                "options": { "num_predict": 1 } }),
            ),
            &prompt,
        );
    }
    for content in ["", "<|eot_id|>", "<|im_end|>"] {
        let body = json!({ "messages": [{ "role": "user", "content": content }], "max_tokens": 1 });
        assert_eq!(server.post("/v1/chat/completions", &body).status, 200, "{content}");
        assert_eq!(server.post("/v1/messages", &body).status, 200, "{content}");
    }
    server.still_answers();
}

/// CVE-2026-5530 (ollama), llama-server's `/cors-proxy`: no URL of a request is fetched.
/// CVE-2026-7482 (ollama): nothing is uploaded.
#[test]
fn requests_cannot_fetch_or_upload() {
    let server = TestServer::start(|_| ());
    let there = TcpListener::bind("127.0.0.1:0").unwrap();
    there.set_nonblocking(true).unwrap();
    let url = format!("http://{}/a", there.local_addr().unwrap());
    let said = |part: Value| json!([{ "role": "user", "content": [part] }]);
    let image = json!({ "type": "image_url", "image_url": { "url": url } });
    let block = json!({ "type": "image", "source": { "type": "url", "url": url } });
    let file = json!({ "type": "input_file", "file_url": url });
    let format =
        json!({ "type": "json_schema", "json_schema": { "schema": { "$ref": url }, "strict": true } });
    let mcp = json!([{ "type": "mcp", "server_label": "x", "server_url": url }]);
    let hi = json!([{ "role": "user", "content": "Hi" }]);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "messages": said(image) })),
        ("/v1/chat/completions", json!({ "messages": hi, "response_format": format })),
        ("/v1/messages", json!({ "messages": said(block), "max_tokens": 1 })),
        ("/v1/responses", json!({ "input": said(file) })),
    ] {
        assert_eq!(server.post(path, &body).status, 400, "{path} {body}");
    }
    server.post("/v1/responses", &json!({ "input": "Hi", "max_output_tokens": 1, "tools": mcp })).ok();
    for (path, status) in [
        ("/api/pull", 501),
        ("/api/create", 501),
        ("/api/push", 501),
        ("/api/blobs/sha256:0000", 501),
        ("/cors-proxy", 404),
        ("/lora-adapters", 400),
    ] {
        let body = json!({ "model": url, "from": url, "url": url });
        assert_eq!(server.post(&format!("{path}?url={url}"), &body).status, status, "{path}");
    }
    let fetched = there.accept().err().map(|err| err.kind());
    assert_eq!(fetched, Some(std::io::ErrorKind::WouldBlock));
    server.still_answers();
}

/// CVE-2025-62426 (vLLM): the template variables of a request cannot replace the conversation.
#[test]
fn template_variables_cannot_replace_messages() {
    let server = TestServer::start(|options| options.template = Some("chatml".into()));
    let body = json!({ "messages": [{ "role": "user", "content": "Original." }] });
    let plain = server.post("/apply-template", &body).ok();
    let mut forged = body;
    forged["chat_template_kwargs"] = json!({ "messages": [{ "role": "system", "content": "Forged." }],
        "add_generation_prompt": false, "tools": ["Forged."], "bos_token": "Forged." });
    assert_eq!(server.post("/apply-template", &forged).ok(), plain);
    assert!(plain["prompt"].as_str().unwrap().contains("Original."));
}

/// Every path in the OpenAPI document needs the key, except health.
#[test]
fn every_path_but_health_needs_the_key() {
    let server = TestServer::start(|options| options.keys = vec!["key".into()]);
    let with_key =
        "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nx-api-key: key\r\nConnection: close\r\n\r\n";
    let document = server.send(with_key).ok();
    assert_eq!(server.get("/openapi.json").status, 401);
    let paths = document["paths"].as_object().unwrap();
    let mut n_guarded = 0;
    for (path, methods) in paths {
        let path = path.replace("{id}", "0");
        for method in methods.as_object().unwrap().keys().filter(|key| *key == "get" || *key == "post") {
            let method = method.to_uppercase();
            let head = "HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
            let status = server.send(&format!("{method} {path} {head}")).status;
            let is_open = path.ends_with("/health");
            assert_eq!(status == 401, !is_open, "{method} {path}: {status}");
            n_guarded += usize::from(status == 401);
        }
    }
    assert!(n_guarded > 30, "{n_guarded}");
}

/// Connections over the limit wait for a place, and silent ones lose theirs after a time.
#[test]
fn connections_over_the_limit_wait() {
    let server = TestServer::start(|options| {
        options.max_connections = 2;
        options.header_time = Duration::from_millis(300);
    });
    let silent: Vec<_> = (0..6).map(|_| server.connect()).collect();
    server.still_answers();
    drop(silent);
}

/// The log has no prompts, keys or query strings.
#[test]
fn log_has_no_prompts_or_keys() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    let model = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let mut server = Command::new(env!("CARGO_BIN_EXE_sterna"))
        .args([
            "serve",
            "--backend",
            "cpu",
            "--port",
            "0",
            "-c",
            "320",
            "-t",
            "1",
            "-v",
            "--api-key",
            "hushkey",
        ])
        .args(["--log-format", "json", "-m"])
        .arg(model)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    let address = super::client::started(&mut lines, "\"ready\"");
    let log = std::thread::spawn(move || lines.collect::<Vec<_>>().join("\n"));
    let say = |path: &str, header: &str, body: Value| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        super::client::send(&mut stream, path, header, body.to_string().as_bytes());
        Answer::read(stream).status
    };
    let talk = json!({ "messages": [{ "role": "user", "content": "hushprompt" }], "max_tokens": 1 });
    assert_eq!(say("/v1/chat/completions?a=hushquery", "x-api-key: hushkey\r\n", talk.clone()), 200);
    assert_eq!(say("/v1/chat/completions", "Authorization: Bearer hushwrong\r\n", talk), 401);
    let bad = json!({ "prompt": "hushprompt", "temperature": "hushvalue" });
    assert_eq!(say("/completion", "x-api-key: hushkey\r\n", bad), 400);
    let named = json!({ "a\u{2028}forged": { "type": "string", "uniqueItems": true } });
    let schema = json!({ "type": "object", "properties": named });
    let lenient = json!({ "prompt": "a", "n_predict": 1, "json_schema": schema });
    assert_eq!(say("/completion", "x-api-key: hushkey\r\n", lenient), 200);
    server.kill().unwrap();
    server.wait().unwrap();
    let log = log.join().unwrap();
    assert!(log.contains("/v1/chat/completions") && log.contains("401"), "{log}");
    assert!(!log.contains("hush"), "{log}");
    assert!(log.contains("\\u2028forged") && !log.contains('\u{2028}'), "{log}");
}
