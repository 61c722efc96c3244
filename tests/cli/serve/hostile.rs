//! Hostile and invalid requests: each gets a clear error, and a good request after it is answered as usual.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sterna::serve::{ModelSource, ServeOptions, Server};

use super::client::{Answer, N_CTX, SLOTS, TestServer, request};
use super::dialects::with;

#[test]
fn invalid_bodies_are_refused() {
    let server = TestServer::start(|options| options.max_body_bytes = 1 << 16);
    let nested = format!("{{\"messages\": {}1{}}}", "[".repeat(5000), "]".repeat(5000));
    let bodies: [&[u8]; 9] = [
        b"",
        b"{",
        b"[]",
        b"\"text\"",
        b"null",
        b"{\"prompt\": \"\xff\xfe\"}",
        b"{\"prompt\": \"a\", \"temperature\": 1e999}",
        b"prompt=You&n_predict=3",
        nested.as_bytes(),
    ];
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/completion",
        "/tokenize",
        "/detokenize",
        "/apply-template",
    ] {
        for body in bodies {
            let answer = server.post_with(path, "", body);
            assert_eq!(answer.error(400)["type"], "invalid_request_error", "{path} {body:?}");
        }
    }
    server.still_answers();
    let error = server.post_with("/completion", "", br#"{"prompt": "a\ud83d"}"#).error(400);
    assert!(error["message"].as_str().unwrap().contains(r"`\ud83d` is a lone surrogate"), "{error}");
    assert_eq!(server.post_with("/completion", "", &[b' '; 70_000]).status, 413);
    let marked = b"\xef\xbb\xbf{\"prompt\": \"You\", \"n_predict\": 1}";
    assert_eq!(server.post_with("/completion", "", marked).status, 200, "a byte order mark");
    assert_eq!(server.post_with("/completion", "", &marked[..3]).status, 400);
    // A content length over the limit, and one that is longer than what is sent.
    let long = "POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n";
    assert_eq!(server.send(long).status, 413);
    let mut stream = server.connect();
    stream
        .write_all(b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{\"prompt\"")
        .unwrap();
    drop(stream);
    // curl sends JSON with the content type of a form.
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let answer = server.post_with("/completion", form, br#"{"prompt": "You", "n_predict": 1}"#);
    assert_eq!(answer.status, 200, "{}", answer.text);
    server.still_answers();
}

#[test]
fn client_refused_while_sending_gets_the_error() {
    let server = TestServer::start(|options| {
        options.max_body_bytes = 1 << 16;
        options.keys = vec!["key".into()];
    });
    // More than the socket buffers hold, so that the client is still sending when the answer arrives.
    let large = vec![b' '; 24 << 20];
    let refused = |path: &str, headers: &str| {
        let mut stream = server.connect();
        stream.write_all(&request(path, headers, &large)).expect("the connection stays open");
        Answer::read(stream)
    };
    let key = "Authorization: Bearer key\r\n";
    let error = refused("/completion", key).error(413);
    assert!(error["message"].as_str().unwrap().contains("65536 bytes"), "{error}");
    assert_eq!(refused("/completion", "").status, 401);
    assert_eq!(refused("/nothing", key).status, 404);
    // A client that waits for `100 Continue` gets only the error.
    let head = "POST /completion HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer key\r\n\
                Content-Length: 1000000\r\nExpect: 100-continue\r\n\r\n";
    assert_eq!(server.send(head).status, 413);
}

#[test]
fn client_that_closes_its_writing_side_is_answered() {
    let server = TestServer::start(|_| ());
    let body = br#"{"prompt": "You", "n_predict": 3, "ignore_eos": true}"#;
    let whole = request("/completion", "", body);
    let said = |bytes: &[u8]| {
        let mut stream = server.connect();
        stream.write_all(bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        Answer::read(stream)
    };
    assert_eq!(said(&whole).ok()["tokens_predicted"], 3);
    assert_eq!(said(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 200);
    let kept_alive = String::from_utf8(whole.clone()).unwrap().replace("Connection: close\r\n", "");
    assert_eq!(said(kept_alive.as_bytes()).status, 200);
    // The server does not wait for the rest of an incomplete request.
    let begun = Instant::now();
    assert_ne!(said(&whole[..whole.len() - 1]).status, 200);
    assert!(begun.elapsed() < ServeOptions::default().body_time / 2);
}

#[test]
fn values_out_of_range_are_refused() {
    let server = TestServer::start(|_| ());
    let huge = json!(1e300);
    let fields: Vec<(&str, Vec<Value>)> = vec![
        ("temperature", vec![json!("hot"), huge.clone(), json!([]), json!(-50)]),
        ("top_p", vec![json!(2), json!(-1)]),
        ("min_p", vec![json!(2)]),
        ("top_k", vec![json!(-7), json!(1.5), huge.clone()]),
        ("repeat_penalty", vec![json!(0), json!(-1)]),
        ("repeat_last_n", vec![json!(-2), huge.clone()]),
        ("seed", vec![json!("x"), json!(1.5), huge.clone()]),
        ("n_predict", vec![json!(-3), json!("many"), huge.clone()]),
        ("stop", vec![json!(3), json!(vec!["x"; 129]), json!("y".repeat(1025)), json!([1])]),
        (
            "logit_bias",
            vec![
                json!(1),
                json!([[1]]),
                json!({ "99999999": 1 }),
                json!({ "1": "much" }),
                json!([[99_999_999, 1]]),
                // More tokens than are allowed, although there are few entries.
                json!([["ab ".repeat(2000), 1]]),
                json!(vec![json!(["ab ".repeat(400), 1]); 3]),
                json!([["a".repeat(1 << 20), 1]]),
                (0..1025).map(|id| (id.to_string(), json!(1))).collect(),
            ],
        ),
        ("n", vec![json!(0), json!(SLOTS + 1), json!(1_000_000_000), json!(-1)]),
        ("stream", vec![json!("yes"), json!(1)]),
        ("n_probs", vec![json!(21), json!(-1)]),
        (
            "prompt",
            vec![
                json!({}),
                json!(7),
                json!({ "prompt_string": "You", "multimodal_data": ["aGk="] }),
                json!([]),
                json!([[]]),
                json!([-1]),
                json!([99_999_999]),
                json!([1.5]),
                json!([null]),
            ],
        ),
    ];
    for (name, values) in fields {
        for value in values {
            let mut body = json!({ "prompt": "You", "n_predict": 1 });
            body[name] = value.clone();
            let error = server.post("/completion", &body).error(400);
            let param = error["param"].as_str().unwrap_or_else(|| panic!("{name}: {error}"));
            assert!(param.starts_with(name), "{name}: {error}");
        }
    }
    server.still_answers();
    let stops = json!({ "prompt": "You", "n_predict": 1, "stop": vec!["y".repeat(1024); 128] });
    assert_eq!(server.post("/completion", &stops).status, 200);
    let good = json!({ "prompt": "You", "n_predict": 1, "temperature": null, "unknown": { "a": [1] },
        "n_discard": -5,
        "n_keep": -1, "seed": -1, "user": "me", "samplers": ["top_k"], "mirostat": 2 });
    assert_eq!(server.post("/completion", &good).status, 200);
}

#[test]
fn invalid_conversations_are_refused() {
    let server = TestServer::start(|_| ());
    let user = json!({ "role": "user", "content": "Hi" });
    let talks = [
        json!(null),
        json!("Hi"),
        json!([]),
        json!([1]),
        json!([{ "content": "Hi" }]),
        json!([{ "role": "king", "content": "Hi" }]),
        json!([{ "role": "user" }]),
        json!([{ "role": "user", "content": 3 }]),
        json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "http://x" } }] }]),
        json!([user, { "role": "assistant", "tool_calls": [{ "id": "x" }] }]),
        json!(vec![user.clone(); 5000]),
    ];
    for talk in talks {
        let error =
            server.post("/v1/chat/completions", &json!({ "messages": talk, "max_tokens": 1 })).error(400);
        assert!(error["param"].as_str().is_some_and(|param| param.starts_with("messages")), "{error}");
    }
    let wrong = [
        ("response_format.type", json!({ "response_format": { "type": "yaml" } })),
        ("response_format.json_schema", json!({ "response_format": { "type": "json_schema" } })),
        (
            "response_format",
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": {
            "type": "object", "properties": { "a": { "$ref": "http://example.com/a" } } },
            "strict": true } } }),
        ),
        ("tools[0].function", json!({ "tools": [{ "type": "function" }] })),
        ("tools[0].type", json!({ "tools": [{ "type": "web_search" }] })),
        (
            "tools[0].function.name",
            json!({ "tools": [{ "type": "function", "function": { "name": "a b" } }] }),
        ),
        ("tool_choice", json!({ "tool_choice": "required" })),
        (
            "tool_choice",
            json!({ "tools": [{ "type": "function", "function": { "name": "f" } }],
            "tool_choice": { "type": "function", "function": { "name": "g" } } }),
        ),
        (
            "grammar",
            json!({ "tools": [{ "type": "function", "function": { "name": "f" } }],
            "grammar": "root ::= \"a\"" }),
        ),
        ("json_schema", json!({ "grammar": "root ::= \"a\"", "json_schema": {} })),
        ("functions", json!({ "functions": [{ "name": "f" }] })),
        ("grammar", json!({ "grammar": "root ::= (" })),
        ("grammar", json!({ "grammar": 3 })),
        ("structured_outputs.regex", json!({ "structured_outputs": { "regex": "(" } })),
        ("structured_outputs.choice", json!({ "structured_outputs": { "choice": [1] } })),
        ("chat_template", json!({ "chat_template": "{{ 1 }}" })),
        ("chat_template_kwargs", json!({ "chat_template_kwargs": [] })),
        ("stop_token_ids", json!({ "stop_token_ids": [-1] })),
        ("suffix", json!({ "suffix": "x" })),
        ("echo", json!({ "echo": true })),
        ("priority", json!({ "priority": 1 })),
        ("thinking_token_budget", json!({ "thinking_token_budget": 5 })),
    ];
    for (name, fields) in wrong {
        let mut body = json!({ "messages": [user], "max_tokens": 1 });
        fields.as_object().unwrap().iter().for_each(|(name, value)| body[name] = value.clone());
        let error = server.post("/v1/chat/completions", &body).error(400);
        assert_eq!(error["param"], name, "{error}");
    }
    let replaces = json!({ "messages": [user], "max_tokens": 1, "chat_template_kwargs": { "messages": [] } });
    assert_eq!(server.post("/v1/chat/completions", &replaces).status, 200);
    let none = json!({ "messages": [user], "max_tokens": 1, "tools": [{ "type": "function",
        "function": { "name": "f" } }], "tool_choice": "none" });
    assert_eq!(server.post("/v1/chat/completions", &none).status, 200);
    let text =
        json!({ "messages": [user], "max_tokens": 1, "response_format": { "type": "text" }, "tools": [] });
    assert_eq!(server.post("/v1/chat/completions", &text).status, 200);
}

#[test]
fn long_prompts_are_refused() {
    let server = TestServer::start(|_| ());
    let error = server.post("/v1/completions", &json!({ "prompt": vec![5; N_CTX] })).error(400);
    assert_eq!(error["code"], "context_length_exceeded");
    assert_eq!((&error["n_prompt_tokens"], &error["n_ctx"]), (&json!(N_CTX), &json!(N_CTX)));
    let message = error["message"].as_str().unwrap();
    for phrase in
        ["context_length_exceeded", "exceeds the available context size", "maximum context length is"]
    {
        assert!(message.contains(phrase), "{message}");
    }
    let talk = json!({ "max_tokens": 4, "messages": [{ "role": "user", "content": "x ".repeat(N_CTX) }] });
    let n = server.post("/v1/messages/count_tokens", &talk).ok()["input_tokens"].clone();
    let error = server.post("/v1/messages", &talk).error(400);
    let message = error["message"].as_str().unwrap();
    let wanted = format!("prompt is too long: {n} tokens > {} maximum", N_CTX - 1);
    assert!(message.starts_with(&wanted), "{message}");
    let full = json!({ "prompt": vec![5; N_CTX - 2], "n_predict": 50, "ignore_eos": true });
    let answer = server.post("/completion", &full).ok();
    assert_eq!((&answer["stop_type"], &answer["truncated"]), (&json!("limit"), &json!(true)));
    assert!(answer["tokens_predicted"].as_u64().unwrap() <= 3);
    let streamed =
        server.post("/completion", &with(&full, json!({ "stream": true, "n_predict": -2 }))).data();
    assert_eq!(serde_json::from_str::<Value>(streamed.last().unwrap()).unwrap()["truncated"], true);
    let few = server.post("/completion", &with(&full, json!({ "n_predict": 1 }))).ok();
    assert_eq!((&few["stop_type"], &few["truncated"]), (&json!("limit"), &json!(false)));
}

#[test]
fn unknown_paths_and_methods_are_refused() {
    let server = TestServer::start(|options| (options.metrics, options.slots) = (false, false));
    assert_eq!(server.get("/v1/nothing").error(404)["type"], "not_found_error");
    assert_eq!(server.get("/v1/chat/completions").error(405)["type"], "invalid_request_error");
    assert_eq!(server.get("/page/../../etc/passwd").status, 404);
    // Extra slashes are ignored.
    for path in ["//v1/models", "/v1/models/", "//api//tags", "/health/"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!(server.post("//v1/messages/", &json!({})).json()["type"], "error");
    assert_eq!(server.post("/infill", &json!({})).error(501)["type"], "not_supported_error");
    assert_eq!(server.get("/metrics").status, 501);
    assert_eq!(server.get("/slots").status, 501);
    let long = format!("GET /health HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let mut stream = server.connect();
    let _ = stream.write_all(long.as_bytes());
    assert!([0, 431].contains(&Answer::read(stream).status));
    assert_eq!(server.send("nonsense\r\n\r\n").status, 400);
    server.still_answers();
}

#[test]
fn keys_guard_all_but_health_and_the_page() {
    let server = TestServer::start(|options| options.keys = vec!["first".into(), "second".into()]);
    assert_eq!(server.get("/").status, 200);
    for path in ["/props", "/slots", "/metrics", "/v1/models", "//v1/models", "/api/tags", "/nothing"] {
        assert_eq!(server.get(path).status, 401, "{path}");
    }
    let body = br#"{"prompt": "You", "n_predict": 1}"#;
    for path in ["/completion", "/tokenize", "/v1/completions", "/v1/messages", "/api/generate"] {
        assert_eq!(server.post_with(path, "", body).status, 401, "{path}");
    }
    let wrong = server.post_with("/completion", "Authorization: Bearer firs\r\n", body);
    assert_eq!(wrong.error(401)["code"], "invalid_api_key");
    assert_eq!(wrong.header("www-authenticate"), Some("bearer"));
    for header in
        ["Authorization: Bearer first\r\n", "authorization: bearer second\r\n", "x-api-key: second\r\n"]
    {
        assert_eq!(server.post_with("/completion", header, body).status, 200, "{header}");
    }
}

#[test]
fn pages_of_other_origins_are_refused() {
    let server = TestServer::start(|options| options.origins = vec!["https://friend.example".into()]);
    let body = br#"{"prompt": "You", "n_predict": 1}"#;
    let port = server.address.port();
    let with = |headers: &str| server.post_with("/completion", headers, body);
    assert_eq!(with("Host: evil.example\r\n").error(403)["type"], "permission_error");
    assert_eq!(with(&format!("Host: 127.0.0.1.evil.example:{port}\r\n")).status, 403);
    assert_eq!(with("Origin: http://evil.example\r\nContent-Type: text/plain\r\n").status, 403);
    let error = with("Origin: app://obsidian.md\r\n").error(403);
    assert!(error["message"].as_str().unwrap().contains("ServeOptions::origins"), "{error}");
    assert_eq!(with("Origin: null\r\n").status, 403);
    assert_eq!(with("Origin: https://friend.example\r\nOrigin: http://evil.example\r\n").status, 403);
    let own = format!("Host: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n");
    assert_eq!(with(&own).status, 200);
    let friend = with("Origin: https://friend.example\r\n");
    assert_eq!(friend.status, 200);
    assert_eq!(friend.header("access-control-allow-origin"), Some("https://friend.example"));
    assert_eq!(with("").header("access-control-allow-origin"), None);
    let preflight = |origin: &str, headers: &str| {
        server.send(&format!(
            "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: POST\r\n{headers}Connection: close\r\n\r\n"
        ))
    };
    let allowed = |answer: &Answer| answer.header("access-control-allow-headers").map(str::to_owned);
    let asked = "authorization,content-type,x-stainless-os,anthropic-dangerous-direct-browser-access";
    let asks = format!("Access-Control-Request-Headers: {asked}\r\n");
    let friend = preflight("https://friend.example", &asks);
    assert_eq!((friend.status, allowed(&friend).as_deref()), (204, Some(asked)));
    let plain = preflight("https://friend.example", "");
    assert_eq!((plain.status, allowed(&plain)), (204, None));
    let evil = preflight("https://evil.example", &asks);
    assert_eq!((evil.status, allowed(&evil)), (403, None));
}

#[test]
fn hosts_are_read_to_their_end() {
    let server = TestServer::start(|options| {
        options.shown_option = |option| option.replace("ServeOptions::hosts", "--allowed-hosts");
    });
    let get = |target: &str, headers: &str| {
        server.send(&format!("GET {target} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n"))
    };
    for host in [
        "[::1].evil.example",
        "[::1]evil.example:8080",
        "localhost:evil",
        "evil.example",
        "b\u{fc}cher.local",
    ] {
        let refused = get("/props", &format!("Host: {host}\r\n")).error(403);
        assert!(refused["message"].as_str().unwrap().contains("--allowed-hosts"), "{refused}");
    }
    for host in
        ["[::1]", "[::1]:8080", "127.0.0.1", "host.docker.internal:8080", "llm.localhost", "pi.local."]
    {
        assert_eq!(get("/props", &format!("Host: {host}\r\n")).status, 200, "{host}");
    }
    for second in ["localhost", "evil.example"] {
        get("/props", &format!("Host: localhost\r\nHost: {second}\r\n")).error(400);
    }
    // The host of a whole URL counts, too.
    assert_eq!(get("http://localhost/props", "Host: localhost\r\n").status, 200);
    assert_eq!(get("http://evil.example/props", "Host: localhost\r\n").status, 403);
    assert_eq!(get("http://localhost/props", "Host: evil.example\r\n").status, 403);
}

#[test]
fn pages_of_other_sites_change_nothing() {
    let server = TestServer::start(|options| options.origins = vec!["https://friend.example".into()]);
    let ask = |method: &str, path: &str, site: &str, headers: &str| {
        let head = format!("Host: localhost\r\nSec-Fetch-Site: {site}\r\n{headers}");
        let body = r#"{"content": "a"}"#;
        let end = format!("Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        server.send(&format!("{method} {path} HTTP/1.1\r\n{head}{end}")).status
    };
    let document =
        server.send("GET /openapi.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok();
    for (path, methods) in document["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "0");
        for method in methods.as_object().unwrap().keys().filter(|key| *key == "get" || *key == "post") {
            let status = ask(&method.to_uppercase(), &path, "cross-site", "Sec-Fetch-Mode: no-cors\r\n");
            assert_eq!(status == 403, !path.ends_with("/health"), "{method} {path}: {status}");
        }
    }
    for path in ["/nothing", "/v1/models/any", "//props?model=b"] {
        assert_eq!(ask("GET", path, "cross-site", "Sec-Fetch-Mode: navigate\r\n"), 403, "{path}");
    }
    // A link to the page, and its files.
    for path in ["/", "/page/page.mjs", "/health"] {
        assert_eq!(ask("GET", path, "cross-site", "Sec-Fetch-Mode: navigate\r\n"), 200, "{path}");
    }
    for site in ["same-origin", "same-site", "none"] {
        assert_eq!(ask("GET", "/props", site, ""), 200, "{site}");
    }
    let friend = "Origin: https://friend.example\r\n";
    assert_eq!(ask("GET", "/props", "cross-site", friend), 200);
    assert_eq!(ask("POST", "/tokenize", "cross-site", friend), 200);
    assert_eq!(ask("OPTIONS", "/tokenize", "cross-site", friend), 204);
    assert_eq!(ask("GET", "/props", "cross-site", "Origin: https://evil.example\r\n"), 403);
    let open = TestServer::start(|options| options.origins = vec!["*".into()]);
    let image =
        "GET /props HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\nConnection: close\r\n\r\n";
    assert_eq!(open.send(image).status, 200);
}

#[test]
fn keys_that_no_client_can_send_start_no_server() {
    let listener = || TcpListener::bind("127.0.0.1:0").unwrap();
    for key in ["", "a b", "cl\u{e9}"] {
        let options = ServeOptions { keys: vec!["good".into(), key.into()], ..ServeOptions::default() };
        let model = ModelSource::once("tiny", || Err("not loaded".into()));
        let started = Server::start(listener(), options, Vec::new(), model);
        assert!(started.is_err_and(|err| err.to_string().contains("an API key")), "{key:?}");
    }
}

#[test]
fn silent_connections_are_closed() {
    let server = TestServer::start(|options| {
        options.header_time = Duration::from_millis(200);
        options.body_time = Duration::from_millis(200);
    });
    for begun in ["", "POST /comp", "GET /health HTTP/1.1\r\nHost: loc"] {
        let mut stream = server.connect();
        stream.write_all(begun.as_bytes()).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    }
    let slow =
        "POST /completion HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{";
    assert_eq!(server.send(slow).status, 408);
    server.still_answers();
}

#[test]
fn request_ids_are_echoed_or_replaced() {
    let server = TestServer::start(|_| ());
    let named = server.post_with("/tokenize", "X-Request-Id: mine-1\r\n", br#"{"content": ""}"#);
    assert_eq!(named.header("x-request-id"), Some("mine-1"));
    let forged = server.post_with("/tokenize", "X-Request-Id: a b\"c\r\n", br#"{"content": ""}"#);
    assert!(forged.header("x-request-id").unwrap().starts_with("req-"));
    assert_eq!(server.get("/health").header("x-content-type-options"), Some("nosniff"));
}
