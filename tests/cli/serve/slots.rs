//! Saving, restoring and erasing slots.

use std::path::Path;

use serde_json::{Value, json};
use sterna::engine::{Engine, EngineOptions};
use sterna::serve::SlotLimits;

use super::client::{Answer, TestServer, engine_with};

const LONG: usize = 200;

/// A prompt of `n` tokens.
fn prompt(n: usize) -> Value {
    let tokens: Vec<usize> = (0..n).map(|i| (i * i * 7) % 500).collect();
    json!({ "prompt": tokens, "n_predict": 4, "temperature": 0, "ignore_eos": true, "id_slot": 1 })
}

fn act(server: &TestServer, action: &str, file: &str) -> Answer {
    server.post(&format!("/slots/1?action={action}"), &json!({ "filename": file }))
}

pub fn with_cache(cache: &str) -> Engine {
    engine_with(|options| EngineOptions {
        cache_type_k: cache.parse().unwrap(),
        cache_type_v: cache.parse().unwrap(),
        // The smallest sizes, so that most pages are quantised.
        kv_sinks: (cache == "turboquant").then_some(64),
        kv_window: (cache == "turboquant").then_some(64),
        ..options
    })
}

fn serve(engine: Engine, folder: &Path) -> TestServer {
    TestServer::with_engine(engine, |options| options.slot_folder = Some(folder.to_path_buf()))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn another_server_restores_a_saved_slot() {
    for cache in ["f16", "turboquant"] {
        let folder = tempfile::tempdir().unwrap();
        let first = serve(with_cache(cache), folder.path());
        let said = first.post("/completion", &prompt(LONG)).ok();
        assert_eq!((&said["id_slot"], &said["timings"]["cache_n"]), (&json!(1), &json!(0)));
        let saved = act(&first, "save", "a.bin").ok();
        assert_eq!(saved["n_saved"], LONG / 64 * 64);
        let bytes = std::fs::metadata(folder.path().join("a.bin")).unwrap().len();
        assert_eq!((&saved["filename"], &saved["n_written"]), (&json!("a.bin"), &json!(bytes)));
        assert_eq!(names(folder.path()), ["a.bin"]);
        drop(first);

        let second = serve(with_cache(cache), folder.path());
        let restored = act(&second, "restore", "a.bin").ok();
        assert_eq!((&restored["n_restored"], &restored["n_read"]), (&saved["n_saved"], &json!(bytes)));
        let again = second.post("/completion", &prompt(LONG)).ok();
        assert_eq!(again["timings"]["cache_n"], saved["n_saved"], "{cache}");
        assert_eq!(again["content"], said["content"]);

        // An erased prompt is computed again.
        let erased = act(&second, "erase", "").ok();
        assert!(erased["n_erased"].as_u64().unwrap() > LONG as u64);
        assert_eq!(second.post("/completion", &prompt(LONG)).ok()["timings"]["cache_n"], 0);
    }
}

#[test]
fn foreign_files_and_unsafe_names_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(with_cache("f16"), folder.path());
    assert!(act(&server, "save", "a").error(400)["message"].as_str().unwrap().contains("64 tokens"));
    server.post("/completion", &prompt(40)).ok();
    assert_eq!(act(&server, "save", "a").status, 400, "it is shorter than a page");
    assert!(names(folder.path()).is_empty());
    server.post("/completion", &prompt(LONG)).ok();
    act(&server, "save", "good").ok();
    for bad in ["", ".", "..", ".x", "../x", "a/b", "/etc/passwd", "a b", &"x".repeat(65)] {
        for action in ["save", "restore"] {
            assert_eq!(act(&server, action, bad).error(400)["param"], "filename", "{bad}");
        }
    }
    assert_eq!(act(&server, "restore", "none").status, 404);
    assert_eq!(act(&server, "burn", "good").error(400)["param"], "action");
    let body = json!({ "filename": "good" });
    assert_eq!(server.post("/slots/3?action=save", &body).status, 400, "there are three slots");
    assert_eq!(server.post("/slots/x?action=save", &body).status, 400);
    let mut other = prompt(LONG);
    other["id_slot"] = 3.into();
    assert_eq!(server.post("/completion", &other).error(400)["param"], "id_slot");

    // Truncated, changed, and other files.
    let good = std::fs::read(folder.path().join("good")).unwrap();
    let mut changed = good.clone();
    *changed.last_mut().unwrap() ^= 1;
    let cases: [(&str, &[u8]); 4] =
        [("empty", b""), ("cut", &good[..good.len() / 2]), ("changed", &changed), ("text", b"hello\n")];
    for (name, bytes) in cases {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        assert_eq!(act(&server, "restore", name).error(400)["param"], "filename", "{name}");
    }
    // The file of another model, here with another cache type. The error says what differs.
    let other = serve(with_cache("q8_0"), folder.path());
    let message = act(&other, "restore", "good").error(400)["message"].clone();
    let message = message.as_str().unwrap();
    assert!(message.contains("f16") && message.contains("q8_0"), "{message}");
    other.still_answers();
    server.still_answers();
    assert_eq!(server.metric("llamacpp:requests_processing"), 0.0);

    let none = TestServer::start(|_| ());
    assert_eq!(act(&none, "save", "a").status, 501);
}

#[test]
fn keys_do_not_share_slots() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::with_engine(with_cache("f16"), |options| {
        options.slot_folder = Some(folder.path().to_path_buf());
        options.keys = vec!["one".into(), "two".into()];
    });
    let send = |key: &str, path: &str, body: &Value| {
        server.post_with(path, &format!("x-api-key: {key}\r\n"), body.to_string().as_bytes())
    };
    send("one", "/completion", &prompt(LONG)).ok();
    let body = json!({ "filename": "a" });
    assert_eq!(send("two", "/slots/1?action=save", &body).status, 400);
    assert_eq!(send("two", "/slots/1?action=erase", &body).ok()["n_erased"], 0);
    send("one", "/slots/1?action=save", &body).ok();

    // Keys do not share files either: the same name gives different files.
    assert_eq!(send("two", "/slots/1?action=restore", &body).status, 404);
    send("two", "/completion", &prompt(LONG - 64)).ok();
    let saved = send("two", "/slots/1?action=save", &body).ok();
    let restored = send("two", "/slots/1?action=restore", &body).ok();
    assert_eq!(restored["n_restored"], saved["n_saved"]);
    assert_eq!(send("one", "/slots/1?action=restore", &body).ok()["n_restored"], LONG / 64 * 64);
    assert_eq!(names(folder.path()).len(), 2);
    drop(server);
    // A server with the keys in another order, and one more, finds the files of each key.
    let server = TestServer::with_engine(with_cache("f16"), |options| {
        options.slot_folder = Some(folder.path().to_path_buf());
        options.keys = vec!["three".into(), "two".into(), "one".into()];
    });
    let restore = |key: &str| {
        server.post_with(
            "/slots/1?action=restore",
            &format!("x-api-key: {key}\r\n"),
            body.to_string().as_bytes(),
        )
    };
    assert_eq!(restore("one").ok()["n_restored"], LONG / 64 * 64);
    assert_eq!(restore("two").ok()["n_restored"], saved["n_saved"]);
    assert_eq!(restore("three").status, 404);
}

/// Saved slots are for their owner alone. Links, pipes and folders are not opened.
#[cfg(unix)]
#[test]
fn slot_files_are_private_and_regular() {
    use std::os::unix::fs::{PermissionsExt, symlink};

    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::with_engine(with_cache("f16"), |options| {
        options.slot_folder = Some(folder.path().to_path_buf());
        options.keys = vec!["one".into()];
    });
    let send =
        |path: &str, body: &Value| server.post_with(path, "x-api-key: one\r\n", body.to_string().as_bytes());
    let act =
        |action: &str, file: &str| send(&format!("/slots/1?action={action}"), &json!({ "filename": file }));
    send("/completion", &prompt(LONG)).ok();
    act("save", "a").ok();
    let own = folder.path().join(&names(folder.path())[0]);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode(&own), mode(&own.join("a"))], [0o700, 0o600]);

    assert!(std::process::Command::new("mkfifo").arg(own.join("pipe")).status().unwrap().success());
    symlink(own.join("a"), own.join("link")).unwrap();
    std::fs::create_dir(own.join("folder")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(own.join("socket")).unwrap();
    for other in ["pipe", "link", "folder", "socket"] {
        let said = act("restore", other).error(400)["message"].to_string();
        assert!(said.contains("not a regular file"), "{other}: {said}");
    }
    // A save replaces them, and follows none.
    let before = std::fs::read(own.join("a")).unwrap();
    for other in ["pipe", "link", "socket"] {
        act("save", other).ok();
        assert_eq!(mode(&own.join(other)), 0o600);
        act("restore", other).ok();
    }
    assert_eq!(std::fs::read(own.join("a")).unwrap(), before);
}

#[test]
fn saved_slots_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let with_limits = |files, bytes| {
        let server = TestServer::with_engine(with_cache("f16"), |options| {
            options.slot_folder = Some(folder.path().to_path_buf());
            options.slot_limits = SlotLimits { files, bytes };
        });
        server.post("/completion", &prompt(LONG)).ok();
        server
    };
    let server = with_limits(2, u64::MAX);
    let bytes = act(&server, "save", "a").ok()["n_written"].as_u64().unwrap();
    act(&server, "save", "b").ok();
    let said = act(&server, "save", "c").error(400)["message"].to_string();
    assert!(said.contains("2 slots are saved, and 2 is the limit"), "{said}");
    act(&server, "save", "a").ok();
    drop(server);
    let server = with_limits(9, 3 * bytes - 1);
    act(&server, "save", "b").ok();
    let said = act(&server, "save", "c").error(400)["message"].to_string();
    assert!(said.contains(&format!("{} bytes, and {} is the limit", 3 * bytes, 3 * bytes - 1)), "{said}");
    let mut names = names(folder.path());
    names.sort();
    assert_eq!(names, ["a", "b"]);
}

/// A limit of 16 KiB per file gives the same error as a full disk. A hangup that was ignored at the start and
/// signals without a meaning do not end the server.
#[cfg(target_os = "linux")]
#[test]
fn file_limits_and_signals_do_not_end_the_server() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    let folder = tempfile::tempdir().unwrap();
    let model = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let script = "trap '' HUP; ulimit -f 32; exec \"$0\" \"$@\"";
    let mut server = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_sterna"), "serve", "--backend", "cpu", "--port", "0"])
        .args(["-c", "320", "-t", "1", "--slot-save-path"])
        .arg(folder.path())
        .arg("-m")
        .arg(model)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map(Result::unwrap);
    let address = super::client::started(&mut lines, " ready");
    // Nothing else reads the log, and a full pipe would block the server.
    let log = std::thread::spawn(move || lines.for_each(drop));
    let save = |name: &str| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        super::client::send(
            &mut stream,
            "/slots/1?action=save",
            "",
            json!({ "filename": name }).to_string().as_bytes(),
        );
        Answer::read(stream)
    };
    let ask = |tokens| {
        let mut stream = std::net::TcpStream::connect(&address).unwrap();
        super::client::send(&mut stream, "/completion", "", prompt(tokens).to_string().as_bytes());
        Answer::read(stream).ok()
    };
    for signal in ["-HUP", "-USR1", "-USR2"] {
        assert!(Command::new("kill").args([signal, &server.id().to_string()]).status().unwrap().success());
    }
    ask(LONG);
    let failed = save("a").error(500);
    assert!(failed["message"].as_str().unwrap().contains("could not be written"), "{failed}");
    assert!(names(folder.path()).is_empty(), "{:?}", names(folder.path()));
    ask(LONG);
    assert!(server.try_wait().unwrap().is_none());
    server.kill().unwrap();
    server.wait().unwrap();
    log.join().unwrap();
}
