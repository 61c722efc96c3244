//! Images in chat completions.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use sterna::engine::{Engine, EngineOptions, Mmproj};

use super::client::TestServer;

/// A server of the tiny Gemma 3 with its vision tower, and a data URL per image of the golden data.
fn server() -> Option<(TestServer, impl Fn(&str) -> String)> {
    let folder = support::golden("vision-gemma3")?;
    let options = EngineOptions {
        device: "cpu".parse().unwrap(),
        n_ctx: Some(256),
        threads: Some(1),
        n_seqs: 3,
        batch: 64,
        mmproj: Some(Mmproj { file: folder.join("mmproj.gguf"), ..Mmproj::default() }),
        ..EngineOptions::default()
    };
    let engine = Engine::open(folder.join("text.gguf"), &options).unwrap();
    let server = TestServer::with_engine(engine, |_| ());
    Some((server, move |file: &str| data_url(&folder.join(file))))
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
