//! LoRA adapters of the server: their list, the scales of requests, adapters by name, and the prefix cache.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use sterna::engine::{Adapter, EngineOptions};
use sterna::gguf::Gguf;
use sterna::serve::{AdapterFolder, LoadError};

use super::client::{TestServer, engine_with};

/// A server with an adapter that is not applied, and another one that requests may name `sql`.
fn server() -> TestServer {
    let adapter = |name: &str, factor: f32| {
        Adapter::new(name, support::lora::of_bitnet(factor)).expect("a valid adapter")
    };
    let adapters = vec![
        adapter("first.gguf", 6.0).with_scale(0.0),
        adapter("second.gguf", -6.0).with_scale(0.0).with_alias("sql"),
    ];
    TestServer::with_engine(engine_with(|options| EngineOptions { adapters, ..options }), |_| ())
}

/// The text that follows a prompt of more than a page, and how many of its tokens were cached.
fn answer(server: &TestServer, more: Value) -> (String, u64) {
    let prompt: Vec<u32> = (0..130).map(|i| (i * 37 + 11) % 500).collect();
    let mut body = json!({ "prompt": prompt, "n_predict": 16, "temperature": 0, "ignore_eos": true });
    let Value::Object(more) = more else { panic!("an object") };
    more.into_iter().for_each(|(name, value)| body[name] = value);
    let answer = server.post("/completion", &body).ok();
    let text = answer["content"].as_str().expect("a text").to_owned();
    (text, answer["timings"]["cache_n"].as_u64().expect("a number"))
}

fn scales(server: &TestServer) -> Vec<f64> {
    let list = server.get("/lora-adapters").ok();
    list.as_array().unwrap().iter().map(|entry| entry["scale"].as_f64().unwrap()).collect()
}

#[test]
fn requests_choose_adapters() {
    let server = server();
    let list = server.get("/lora-adapters").ok();
    let first = json!({ "id": 0, "path": "first.gguf", "scale": 0.0, "task_name": "", "prompt_prefix": "" });
    assert_eq!(list[0], first);
    let of = |scale: f64| json!({ "lora": [{ "id": 0, "scale": scale }] });
    let (plain, _) = answer(&server, json!({}));
    let (adapted, _) = answer(&server, of(1.0));
    let (half, _) = answer(&server, of(-2.0));
    assert!(plain != adapted && adapted != half && plain != half);
    // Each finds its own pages; a request without the field follows one with it.
    for (more, text) in [(of(1.0), &adapted), (json!({}), &plain), (of(-2.0), &half), (of(0.0), &plain)] {
        assert_eq!(answer(&server, more), (text.clone(), 128));
    }
    // The default, which an empty list asks for.
    let set = |list: Value| server.post("/lora-adapters", &list);
    assert_eq!(set(json!([{ "id": 0, "scale": 1 }])).ok(), json!({ "success": true }));
    assert_eq!(scales(&server), [1.0, 0.0]);
    assert_eq!(answer(&server, json!({})), (adapted.clone(), 128));
    assert_eq!(answer(&server, json!({ "lora": [] })), (adapted, 128));
    assert_eq!(answer(&server, of(0.0)), (plain.clone(), 128));
    set(json!([{ "id": 1, "scale": 0.5 }])).ok();
    assert_eq!(scales(&server), [0.0, 0.5]);
    set(json!([])).ok();
    assert_eq!(answer(&server, json!({})), (plain, 128));
}

#[test]
fn adapters_are_models_by_name() {
    let server = server();
    let (plain, _) = answer(&server, json!({ "model": "tiny" }));
    let (named, _) = answer(&server, json!({ "model": "sql" }));
    let (chosen, cached) = answer(&server, json!({ "lora": [{ "id": 1, "scale": 1 }] }));
    assert_ne!(plain, named);
    assert_eq!((chosen, cached), (named, 128));
    let models = server.get("/v1/models").ok();
    let models = models["data"].as_array().unwrap();
    assert_eq!(models.len(), 2);
    assert!(models[0].get("parent").is_none());
    assert_eq!((&models[1]["id"], &models[1]["parent"]), (&json!("sql"), &models[0]["id"]));
    assert_eq!(server.get("/v1/models/sql").ok()["parent"], models[0]["id"]);
    server.get("/v1/models/other").error(404);
}

#[test]
fn wrong_choices_are_refused() {
    let server = server();
    let said = |answer: Value| answer["message"].as_str().unwrap().to_owned();
    let prompt = |lora: Value| json!({ "prompt": "Hi", "n_predict": 1, "lora": lora });
    for (lora, part) in [
        (json!([{ "id": 2, "scale": 1 }]), "`lora[0].id`: want the id of an adapter, 0 to 1"),
        (json!([{ "id": -1, "scale": 1 }]), "lora[0].id"),
        (json!([{ "id": 0 }]), "lora[0].scale"),
        (json!([{ "scale": 1 }]), "lora[0].id"),
        (json!([{ "id": 0, "scale": 1 }, { "id": 0, "scale": 1 }]), "each adapter once"),
        (json!([1]), "lora[0]"),
        (json!("sql"), "lora"),
    ] {
        let message = said(server.post("/completion", &prompt(lora.clone())).error(400));
        assert!(message.contains(part), "{message} without {part}");
    }
    for list in [json!({}), json!([{ "id": 2, "scale": 1 }]), json!(null), json!([[]])] {
        server.post("/lora-adapters", &list).error(400);
    }
    assert_eq!(scales(&server), [0.0, 0.0]);
    let without = TestServer::start(|_| ());
    assert_eq!(without.get("/lora-adapters").ok(), json!([]));
    let message = said(without.post("/completion", &prompt(json!([{ "id": 0, "scale": 1 }]))).error(400));
    assert!(message.contains("started without any"), "{message}");
}

/// A folder of adapters `a.gguf` and `b.gguf`, and a server whose clients may load them. It begins with one
/// that is not applied.
fn server_of_folder(folder: &Path) -> TestServer {
    server_with(folder, |path| Ok(Gguf::open(path)?))
}

fn server_with(
    folder: &Path,
    open: impl Fn(&Path) -> Result<Gguf, LoadError> + Send + Sync + 'static,
) -> TestServer {
    std::fs::write(folder.join("a.gguf"), support::lora::of_bitnet_bytes(6.0)).unwrap();
    std::fs::write(folder.join("b.gguf"), support::lora::of_bitnet_bytes(-6.0)).unwrap();
    std::fs::write(folder.join("text.gguf"), "no adapter").unwrap();
    let open = move |path: &Path| Ok(Adapter::new(path.display().to_string(), open(path)?)?);
    let adapters = AdapterFolder::new(folder, Vec::new(), open).unwrap();
    let listed = adapters.clone();
    let load = move || {
        let first = Adapter::new("first.gguf", support::lora::of_bitnet(3.0)).expect("a valid adapter");
        let named = [first.with_scale(0.0)].into_iter().chain(listed.named()).collect();
        engine_with(|options| EngineOptions { adapters: named, ..options })
    };
    TestServer::reloading(load, |options| options.lora_folder = Some(adapters))
}

fn names(server: &TestServer) -> Vec<String> {
    let models = server.get("/v1/models").ok();
    let named = models["data"].as_array().unwrap().iter().filter(|model| model.get("parent").is_some());
    named.map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn adapters_are_loaded_and_unloaded() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_of_folder(folder.path());
    let load = |body: Value| server.post("/v1/load_lora_adapter", &body);
    let text = |name: &str| answer(&server, json!({ "model": name })).0;
    let (plain, of_first) = (text("tiny"), json!([{ "id": 0, "scale": 0.5 }]));
    server.post("/lora-adapters", &of_first).ok();
    let first = text("tiny");
    assert_ne!(plain, first);
    let done = load(json!({ "lora_name": "sql", "lora_path": "a.gguf" }));
    assert_eq!((done.status, done.text.as_str()), (200, "Success: LoRA adapter 'sql' added successfully."));
    assert_eq!(names(&server), ["sql"]);
    // The scales of other adapters stay.
    assert_eq!((scales(&server), text("tiny")), (vec![0.5, 0.0], first.clone()));
    let sql = text("sql");
    assert!(sql != plain && sql != first);
    assert_eq!(server.get("/lora-adapters").ok()[1]["path"], "a.gguf");
    // By an absolute path, and in the place of another one.
    let path = folder.path().canonicalize().unwrap().join("b.gguf");
    assert_eq!(load(json!({ "lora_name": "tone", "lora_path": path })).status, 200);
    assert_eq!(names(&server), ["sql", "tone"]);
    let tone = text("tone");
    let again = json!({ "lora_name": "sql", "lora_path": "b.gguf" });
    let message = load(again.clone()).error(400)["message"].as_str().unwrap().to_owned();
    assert!(message.contains("already been loaded") && message.contains("load_inplace"), "{message}");
    assert_eq!(text("sql"), sql);
    let mut in_place = again;
    in_place["load_inplace"] = json!(true);
    assert_eq!(load(in_place).status, 200);
    assert_eq!((names(&server), text("sql")), (vec!["sql".to_owned(), "tone".to_owned()], tone.clone()));
    let unload = |name: &str| server.post("/v1/unload_lora_adapter", &json!({ "lora_name": name }));
    let done = unload("sql");
    assert_eq!((done.status, done.text.as_str()), (200, "Success: LoRA adapter 'sql' removed successfully."));
    assert_eq!((names(&server), text("tone")), (vec!["tone".to_owned()], tone));
    unload("sql").error(404);
    assert_eq!((scales(&server), text("tiny")), (vec![0.5, 0.0], first));
}

#[test]
fn adapters_that_cannot_be_loaded_are_refused() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::create_dir(outside.path().join("adapters")).unwrap();
    let folder = outside.path().join("adapters");
    std::fs::write(outside.path().join("other.gguf"), support::lora::of_bitnet_bytes(1.0)).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink(outside.path().join("other.gguf"), folder.join("link.gguf")).unwrap();
    let server = server_of_folder(&folder);
    let load = |body: Value| server.post("/v1/load_lora_adapter", &body);
    let absolute = outside.path().join("other.gguf");
    for path in ["none.gguf", "../other.gguf", "link.gguf", ".", "", absolute.to_str().unwrap()] {
        let error = load(json!({ "lora_name": "sql", "lora_path": path })).error(404);
        assert!(error["message"].as_str().unwrap().starts_with("no adapter at"), "{error}");
    }
    let model = server.get("/v1/models").ok()["data"][0]["id"].clone();
    for (body, part) in [
        (json!({ "lora_path": "a.gguf" }), "lora_name"),
        (json!({ "lora_name": "sql" }), "lora_path"),
        (json!({ "lora_name": " ", "lora_path": "a.gguf" }), "lora_name"),
        (json!({ "lora_name": model, "lora_path": "a.gguf" }), "a name of the model"),
        (json!({ "lora_name": "sql", "lora_path": "text.gguf" }), "lora_path"),
    ] {
        let message = load(body).error(400)["message"].as_str().unwrap().to_owned();
        assert!(message.contains(part) && !message.contains(folder.to_str().unwrap()), "{message}");
    }
    server.post("/v1/unload_lora_adapter", &json!({})).error(400);
    assert!(names(&server).is_empty());
    let without = TestServer::start(|_| ());
    for path in ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"] {
        let error = without.post(path, &json!({ "lora_name": "a", "lora_path": "a.gguf" })).error(501);
        assert!(error["message"].as_str().unwrap().contains("ServeOptions::lora_folder"), "{error}");
    }
}

/// Bytes of a file, counted while they are in use.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The bytes of a file are those of the matrices that the engine multiplies by.
#[test]
fn memory_of_unloaded_adapters_is_freed() {
    let folder = tempfile::tempdir().unwrap();
    let used = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&used);
    let server = server_with(folder.path(), move |path| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(Gguf::from_bytes(Bytes::from_owner(Counted(std::fs::read(path)?, Arc::clone(&counter))))?)
    });
    let load = json!({ "lora_name": "sql", "lora_path": "a.gguf" });
    assert_eq!(server.post("/v1/load_lora_adapter", &load).status, 200);
    answer(&server, json!({ "model": "sql" }));
    assert_eq!(used.load(Ordering::Relaxed), 1);
    assert_eq!(server.post("/v1/unload_lora_adapter", &json!({ "lora_name": "sql" })).status, 200);
    let begun = Instant::now();
    while used.load(Ordering::Relaxed) > 0 {
        // The thread of the model before ends by itself.
        assert!(begun.elapsed() < Duration::from_secs(300), "the adapter is still in memory");
        std::thread::sleep(Duration::from_millis(5));
    }
    answer(&server, json!({}));
}

/// Requests that run meanwhile end with the text that they would have had.
#[test]
fn running_requests_are_not_disturbed() {
    let folder = tempfile::tempdir().unwrap();
    let server = server_of_folder(folder.path());
    let long = json!({ "prompt": [1, 2, 3], "n_predict": 200, "temperature": 0, "ignore_eos": true });
    let text = || server.post("/completion", &long).ok()["content"].as_str().unwrap().to_owned();
    let want = text();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..2).map(|_| scope.spawn(text)).collect();
        for i in 0..3 {
            let body = json!({ "lora_name": format!("a{i}"), "lora_path": "a.gguf" });
            assert_eq!(server.post("/v1/load_lora_adapter", &body).status, 200);
            assert_eq!(text(), want);
        }
        running.into_iter().for_each(|running| assert_eq!(running.join().unwrap(), want));
    });
    assert_eq!(names(&server), ["a0", "a1", "a2"]);
}
