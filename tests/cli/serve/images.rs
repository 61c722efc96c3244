//! Images in every chat API.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sterna::engine::{Engine, EngineOptions, Mmproj};
use sterna::serve::{FetchImage, ServeOptions};

use super::client::{DESCRIPTION, TestServer};

/// A server of the tiny Gemma 3 with its vision tower, and a data URL per image of the golden data.
fn server() -> Option<(TestServer, impl Fn(&str) -> String)> {
    server_with(|_| ())
}

fn server_with(change: impl FnOnce(&mut ServeOptions)) -> Option<(TestServer, impl Fn(&str) -> String)> {
    let (folder, engine) = engine()?;
    let server = TestServer::with_engine(engine, change);
    Some((server, move |file: &str| data_url(&folder.join(file))))
}

fn engine() -> Option<(PathBuf, Engine)> {
    let folder = support::golden("vision-gemma3")?;
    let options = EngineOptions {
        device: "cpu".parse().unwrap(),
        n_ctx: Some(512),
        threads: Some(1),
        n_seqs: 3,
        batch: 64,
        mmproj: Some(Mmproj { file: folder.join("mmproj.gguf"), ..Mmproj::default() }),
        ..EngineOptions::default()
    };
    let engine = Engine::open(folder.join("text.gguf"), &options).unwrap();
    Some((folder, engine))
}

fn data_url(file: &Path) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut url = "data:image/png;base64,".to_owned();
    for three in fs::read(file).unwrap().chunks(3) {
        let bits = three.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        let digits = (0..4).map(|at| DIGITS[(bits >> (18 - 6 * at) & 63) as usize] as char);
        url.extend(digits.take(three.len() + 1));
        url.extend(std::iter::repeat_n('=', 3 - three.len()));
    }
    url
}

fn ask(parts: &[Value]) -> Value {
    json!({ "messages": [{ "role": "user", "content": parts }], "max_tokens": 8, "temperature": 0 })
}

fn image(url: &str) -> Value {
    json!({ "type": "image_url", "image_url": { "url": url } })
}

#[test]
fn chat_completions_read_images() {
    let Some((server, url)) = server() else { return };
    let said = |text: &str| json!({ "type": "text", "text": text });
    let answer = |body: &Value| server.post("/v1/chat/completions", body).ok();
    let text = |body: &Value| answer(body)["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let n_prompt = |body: &Value| answer(body)["usage"]["prompt_tokens"].as_u64().unwrap();
    let square = ask(&[said("What is this?"), image(&url("square.png"))]);
    let wide = ask(&[said("What is this?"), image(&url("wide.png"))]);
    assert_eq!(text(&square), text(&square));
    assert_ne!(text(&square), text(&wide));
    // 16 rows, two markers, and two newlines on each side.
    assert_eq!(n_prompt(&square), n_prompt(&ask(&[said("What is this?")])) + 16 + 2 + 4);
    // The order of parts matters, and a conversation with several images runs.
    let first = ask(&[image(&url("square.png")), said("What is this?")]);
    let both = ask(&[image(&url("square.png")), said("and"), image(&url("wide.png"))]);
    assert!(n_prompt(&first) == n_prompt(&square) && n_prompt(&both) > n_prompt(&first));
    assert_eq!(server.get("/props").ok()["modalities"]["vision"], true);
    let models = server.get("/v1/models").ok();
    let has_vision = models["models"][0]["capabilities"].as_array().unwrap().contains(&json!("vision"));
    assert!(has_vision, "{models}");
}

/// A control token in a text is not parsed, next to an image either.
#[test]
fn texts_next_to_images_are_plain() {
    let Some((server, url)) = server() else { return };
    let count = |text: &str| {
        let body = ask(&[json!({ "type": "text", "text": text }), image(&url("square.png"))]);
        server.post("/v1/chat/completions", &body).ok()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert!(count("<end_of_turn>") > count("") + 1);
}

#[test]
fn wrong_images_are_refused_by_their_path() {
    let Some((server, url)) = server() else { return };
    let part = "messages[0].content[0].image_url";
    let png = url("square.png");
    for (url, word) in [
        ("http://127.0.0.1/a.png", "fetches no images"),
        ("file:///etc/passwd", "want a data URL"),
        ("data:image/png,abc", "base64"),
        ("data:image/png;base64,%%", "not base64"),
        ("data:image/png;base64,AAAA", "PNG, JPEG, WebP, GIF or BMP"),
        (&png[..22 + 400], "cannot be decoded"),
    ] {
        let error = server.post("/v1/chat/completions", &ask(&[image(url)])).error(400);
        assert_eq!(error["param"], part, "{error}");
        assert!(error["message"].as_str().unwrap().contains(word), "{word}: {error}");
    }
    let many = vec![image(&png); 17];
    assert!(
        server.post("/v1/chat/completions", &ask(&many)).error(400)["message"]
            .as_str()
            .unwrap()
            .contains("17 images")
    );
    server.still_answers();
}

#[test]
fn without_a_tower_the_refusal_says_which_file_to_give() {
    let server = TestServer::start(|_| ());
    let body = ask(&[image("data:image/png;base64,AAAA")]);
    let error = server.post("/v1/chat/completions", &body).error(400);
    assert_eq!(error["param"], "messages[0].content[0].image_url");
    assert!(error["message"].as_str().unwrap().contains("-mm FILE"), "{error}");
    assert_eq!(server.get("/props").ok()["modalities"]["vision"], false);
}

/// The file of a data URL, in base64.
fn base64(url: &str) -> &str {
    url.split_once(',').unwrap().1
}

/// The same image before the same text in every API: answer, and tokens of the prompt.
#[test]
fn every_chat_api_reads_images() {
    let Some((server, url)) = server() else { return };
    let (url, what) = (url("wide.png"), "What is this?");
    let source = json!({ "type": "base64", "media_type": "image/png", "data": base64(&url) });
    let text = json!({ "type": "text", "text": what });
    let chat = ask(&[image(&url), text.clone()]);
    let want = server.post("/v1/chat/completions", &chat).ok();
    let n_prompt = want["usage"]["prompt_tokens"].as_u64().unwrap();
    let want = want["choices"][0]["message"]["content"].clone();

    let parts = json!([{ "type": "input_image", "image_url": url }, { "type": "input_text", "text": what }]);
    let input = json!([{ "role": "user", "content": parts }]);
    let responses = json!({ "input": input, "max_output_tokens": 8, "temperature": 0 });
    let blocks = json!([{ "type": "image", "source": source }, text]);
    let turns = json!([{ "role": "user", "content": blocks }]);
    let messages = json!({ "model": "any", "messages": turns, "max_tokens": 8, "temperature": 0 });
    let options = json!({ "num_predict": 8, "temperature": 0 });
    let said = json!([{ "role": "user", "content": what, "images": [base64(&url)] }]);
    let ollama = json!({ "messages": said, "stream": false, "options": options });
    let generate = json!({ "prompt": what, "images": [base64(&url)], "stream": false, "options": options });
    for (path, request, body, answer) in [
        ("/v1/responses", "ResponsesRequest", &responses, "/output/0/content/0/text"),
        ("/v1/messages", "MessagesRequest", &messages, "/content/0/text"),
        ("/api/chat", "OllamaChatRequest", &ollama, "/message/content"),
        ("/api/generate", "OllamaGenerateRequest", &generate, "/response"),
    ] {
        DESCRIPTION.check_request(request, body);
        let got = server.post(path, body).ok();
        assert_eq!(got.pointer(answer), Some(&want), "{path}: {got}");
        let n = |pointer: &str| got.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        let n_tokens = match path {
            "/v1/messages" => n("/usage/input_tokens") + n("/usage/cache_read_input_tokens"),
            "/v1/responses" => n("/usage/input_tokens"),
            _ => n("/prompt_eval_count"),
        };
        assert_eq!(n_tokens, n_prompt, "{path}: {got}");
        // A context of tokens cannot repeat an image.
        assert!(got.get("context").is_none(), "{path}: {got}");
    }
    for (path, body) in [
        ("/v1/chat/completions/input_tokens", &chat),
        ("/v1/responses/input_tokens", &responses),
        ("/v1/messages/count_tokens", &messages),
    ] {
        assert_eq!(server.post(path, body).ok()["input_tokens"], n_prompt, "{path}");
    }
    let template = server.post("/apply-template", &chat).ok();
    assert!(template["prompt"].as_str().unwrap().contains("<__media__>What is this?"), "{template}");
    for path in ["/api/show", "/api/tags"] {
        let shown = if path == "/api/show" { server.post(path, &json!({})) } else { server.get(path) }.ok();
        assert!(shown.to_string().contains("\"vision\""), "{path}: {shown}");
    }
}

/// Without a template: 16 rows, two markers and newlines, and the tokens of the text.
#[test]
fn raw_prompts_have_their_images_first() {
    let Some((server, url)) = server() else { return };
    let count = |images: &[&str]| {
        let body = json!({ "prompt": "It is", "raw": true, "stream": false, "images": images,
            "options": { "num_predict": 1 } });
        server.post("/api/generate", &body).ok()["prompt_eval_count"].as_u64().unwrap()
    };
    let url = url("square.png");
    assert!(count(&[base64(&url)]) >= count(&[]) + 16 + 2);
    let context = json!({ "prompt": "a", "images": [base64(&url)], "context": [1], "stream": false });
    assert!(server.post("/api/generate", &context).text.contains("/api/chat"));
}

/// The model sees images in results of tools, and is told of those that are somewhere else.
#[test]
fn images_in_results_of_tools_are_read() {
    let Some((server, url)) = server_with(|options| options.template = Some("chatml".into())) else { return };
    let url = url("square.png");
    let source = json!({ "type": "base64", "media_type": "image/png", "data": base64(&url) });
    let count = |result: Value| {
        let body = json!({ "model": "any", "max_tokens": 1, "messages": [
            { "role": "user", "content": "a" },
            { "role": "assistant", "content": [{ "type": "tool_use", "id": "t", "name": "f", "input": {} }] },
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": result }] },
        ] });
        server.post("/v1/messages", &body).ok();
        server.post("/v1/messages/count_tokens", &body).ok()["input_tokens"].as_u64().unwrap()
    };
    assert!(count(json!([{ "type": "image", "source": source }])) >= count(json!([])) + 16 + 2);
    let elsewhere = json!([{ "type": "image", "source": { "type": "url", "url": "http://x/a.png" } }]);
    assert_eq!(count(elsewhere), count(json!("[There is an image here, which this model cannot see.]")));
    let broken = json!([{ "type": "image", "source": { "type": "base64", "data": "AAAA" } }]);
    let body = json!({ "model": "any", "max_tokens": 1, "messages": [
        { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t", "content": broken }] }] });
    let error = server.post("/v1/messages", &body).error(400);
    let path = "messages[0].content[0].content[0].source";
    assert!(error["message"].as_str().unwrap().contains(path), "{error}");
}

/// A conversation goes on without a second pass of the tower, and resumes after its pages when a new image
/// appears, here in the result of a tool. Its slot is refused by name when it is saved, and is erased with
/// the images.
#[test]
fn a_conversation_encodes_each_image_once() {
    let Some((folder, engine)) = engine() else { return };
    let saved = tempfile::tempdir().unwrap();
    let server = TestServer::with_engine(engine.clone(), |options| {
        options.template = Some("chatml".into());
        options.slot_folder = Some(saved.path().to_path_buf());
    });
    let mut messages = vec![];
    let mut answer = |more: Vec<Value>| {
        messages.extend(more);
        let body = json!({ "messages": messages, "max_tokens": 4, "temperature": 0, "id_slot": 1 });
        let answer = server.post("/v1/chat/completions", &body).ok();
        messages.push(json!({ "role": "assistant", "content": answer["choices"][0]["message"]["content"] }));
        let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
        (engine.vision().unwrap().n_encoded(), cached.as_u64().unwrap() / 64)
    };
    let [square, wide] = ["square.png", "wide.png"].map(|file| image(&data_url(&folder.join(file))));
    let long = json!({ "type": "text", "text": "Tell me more of it. ".repeat(8) });
    let user = |parts: Value| json!({ "role": "user", "content": parts });
    assert_eq!(answer(vec![user(json!([square, long]))]), (1, 0));
    let (n_encoded, n_cached) = answer(vec![user(json!("And now?"))]);
    assert!(n_encoded == 1 && n_cached >= 1, "{n_encoded} images, {n_cached} pages");
    let call = json!({ "id": "t", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let result = json!({ "role": "tool", "tool_call_id": "t", "content": [wide] });
    let call = json!({ "role": "assistant", "content": null, "tool_calls": [call] });
    let (n_encoded, with_new) = answer(vec![user(json!("Look.")), call, result]);
    assert!(n_encoded == 2 && with_new >= n_cached, "{n_encoded} images, {with_new} pages");
    assert_eq!(answer(vec![user(json!("Done?"))]).0, 2);
    let refused = server.post("/slots/1?action=save", &json!({ "filename": "a" })).error(400);
    assert!(refused["message"].as_str().unwrap().contains("slot 1 has a text with images"), "{refused}");
    // An erased conversation is computed again.
    server.post("/slots/1?action=erase", &json!({})).ok();
    messages.truncate(messages.len() - 1);
    let body = json!({ "messages": messages, "max_tokens": 1, "id_slot": 1 });
    let again = server.post("/v1/chat/completions", &body).ok();
    let n_cached = again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() / 64;
    assert!(n_cached < with_new, "{n_cached} of {with_new} pages are left");
}

#[test]
fn urls_are_read_only_if_the_operator_allows_it() {
    let Some((server, _)) = server() else { return };
    let part = image("https://pictures.example/a.png");
    let error = server.post("/v1/chat/completions", &ask(std::slice::from_ref(&part))).error(400);
    assert!(error["message"].as_str().unwrap().contains("--image-hosts"), "{error}");
    let folder = support::golden("vision-gemma3").unwrap();
    let file = fs::read(folder.join("square.png")).unwrap();
    let fetch = FetchImage::new(move |url| match url {
        "https://pictures.example/a.png" => Ok(file.clone()),
        _ => Err("no such host".to_owned()),
    });
    let Some((server, url)) = server_with(|options| options.fetch_image = Some(fetch)) else { return };
    let text = |part: Value| server.post("/v1/chat/completions", &ask(&[part])).ok()["choices"].clone();
    assert_eq!(text(part), text(image(&url("square.png"))));
    let error = server.post("/v1/chat/completions", &ask(&[image("https://other.example/a")])).error(400);
    assert_eq!(error["param"], "messages[0].content[0].image_url");
    assert!(error["message"].as_str().unwrap().contains("no such host"), "{error}");
    let error = server.post("/v1/chat/completions", &ask(&[image("file:///etc/passwd")])).error(400);
    assert!(error["message"].as_str().unwrap().contains("want a data URL"), "{error}");
}
