//! Saved and restored sessions: they continue to the bit on every backend and with every KV codec, and
//! damaged files or those of another engine are refused.

use std::io::Cursor;

use ggml_types::kv;
use sterna::Error;
use sterna::backend::{BackendError, NAMES};
use sterna::engine::{Engine, EngineOptions, HeadType, Session, StateError};
use sterna::gguf::Gguf;

/// Longer than the first pages and the window.
const N_CTX: usize = 448;

fn options(codec: &str) -> EngineOptions {
    EngineOptions {
        device: "cpu".parse().unwrap(),
        threads: Some(2),
        n_ctx: Some(N_CTX),
        batch: 80,
        cache_type_k: codec.parse().unwrap(),
        cache_type_v: codec.parse().unwrap(),
        ..EngineOptions::default()
    }
}

fn model() -> Gguf {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    Gguf::open(&path).unwrap()
}

fn open(options: &EngineOptions) -> Engine {
    Engine::from_gguf(model(), options, |_| ()).unwrap()
}

fn cpu(codec: &str) -> Engine {
    open(&options(codec))
}

/// An arbitrary token sequence.
fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * i * 7 + i * 13) % 500).collect()
}

fn saved(session: &mut Session) -> Vec<u8> {
    let mut bytes = Vec::new();
    session.save(&mut bytes).unwrap();
    bytes
}

fn restored(engine: &Engine, bytes: &[u8]) -> Result<Session, Error> {
    engine.restore(&mut Cursor::new(bytes))
}

/// Bits of the logits after the tokens.
fn feed(session: &mut Session, tokens: &[u32]) -> Vec<u32> {
    session.logits(tokens).unwrap().iter().map(|x| x.to_bits()).collect()
}

/// The CPU with every codec; devices with one of each kind: f16, blocks, codes with an exact window.
#[test]
fn restored_sessions_continue_to_the_bit() {
    check_restored(|backend, codec| backend == "cpu" || ["f16", "q8_0", "turboquant"].contains(&codec));
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn restored_sessions_continue_to_the_bit_for_every_codec() {
    check_restored(|_, _| true);
}

fn check_restored(tries: fn(&str, &str) -> bool) {
    // The second page is encoded by then.
    let (before, after) = (tokens(133), tokens(3));
    'backends: for name in NAMES.iter().filter(|name| **name != "cuda") {
        let mut codecs = 0;
        for codec in kv::REGISTRY.iter().filter(|codec| tries(name, codec.name())) {
            let Some(backend) = support::case::backend(name, 2) else { continue 'backends };
            let options = EngineOptions { n_seqs: 2, ..options(codec.name()) };
            let engine = match Engine::on_backend(model(), &options, backend, |_| ()) {
                Err(Error::Backend(BackendError::Missing { .. })) => continue,
                opened => opened.unwrap(),
            };
            let mut session = engine.session().unwrap();
            session.prefill(&before).unwrap();
            let bytes = saved(&mut session);
            // Other pages of the same engine; the next test uses other engines.
            let mut again = restored(&engine, &bytes).unwrap();
            assert_eq!(again.tokens(), before);
            assert!(feed(&mut session, &after) == feed(&mut again, &after), "{name}, {}", codec.name());
            codecs += 1;
        }
        let want = kv::REGISTRY.iter().filter(|codec| tries(name, codec.name())).count().min(6);
        assert!(codecs >= want, "{name} has {codecs}");
    }
}

#[test]
fn cut_branched_and_empty_sessions_can_be_restored() {
    for codec in kv::REGISTRY {
        let engine = open(&EngineOptions { n_seqs: 2, ..options(codec.name()) });
        let mut session = engine.session().unwrap();
        assert_eq!(restored(&engine, &saved(&mut session)).unwrap().position(), 0);
        session.prefill(&tokens(400)).unwrap();
        // Far enough back that a part of a page is recomputed.
        session.cut_back(150);
        let bytes = saved(&mut session);
        let mut again = restored(&cpu(codec.name()), &bytes).unwrap();
        assert!(feed(&mut session, &tokens(70)) == feed(&mut again, &tokens(70)), "{}: a cut", codec.name());
        let mut branch = session.branch(201).unwrap();
        let bytes = saved(&mut branch);
        let mut again = restored(&cpu(codec.name()), &bytes).unwrap();
        assert!(
            feed(&mut branch, &tokens(70)) == feed(&mut again, &tokens(70)),
            "{}: a branch",
            codec.name()
        );
    }
}

#[test]
fn damaged_files_are_refused() {
    for codec in ["f16", "turboquant"] {
        let engine = cpu(codec);
        let mut session = engine.session().unwrap();
        session.prefill(&tokens(200)).unwrap();
        let bytes = saved(&mut session);
        drop(session);
        // Every byte before the pages, and some of the pages.
        let head = bytes.windows(2).position(|two| two == b"\n\n").unwrap() + 2 + 8 + 4 * 200 + 4;
        for at in (0..head).chain((head..bytes.len()).step_by(997)).chain(bytes.len() - 4..bytes.len()) {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x41;
            assert!(restored(&engine, &wrong).is_err(), "{codec}: byte {at}");
            let cut = restored(&engine, &bytes[..at]);
            assert!(matches!(cut, Err(Error::State(_))), "{codec}: {at} bytes: {:?}", cut.err());
        }
        restored(&engine, &bytes).unwrap();
        let text = restored(&engine, b"Once upon a time, there was no session.\n").unwrap_err();
        assert!(matches!(text, Error::State(StateError::Unknown)), "{text}");
    }
}

#[test]
fn files_of_other_engines_are_refused() {
    let engine = cpu("turboquant");
    let mut session = engine.session().unwrap();
    session.prefill(&tokens(300)).unwrap();
    let bytes = saved(&mut session);
    let refused = |options: EngineOptions, words: &str| {
        let err = restored(&open(&options), &bytes).unwrap_err().to_string();
        assert!(err.contains(words), "{err}");
    };
    let same = options("turboquant");
    refused(options("f16"), "keys as turboquant (means of pages), and this engine has f16");
    refused(
        EngineOptions { cache_type_v: "q8_0".parse().unwrap(), ..same.clone() },
        "values as turboquant-mse, and this engine has q8_0",
    );
    refused(EngineOptions { kv_window: Some(200), ..same.clone() }, "exact pages 1 first, 1 newest");
    refused(
        EngineOptions { n_ctx: Some(256), ..same.clone() },
        "it needs 300 positions, and the context has 256; EngineOptions::n_ctx",
    );
    refused(EngineOptions { head_type: HeadType::Q8_0, ..same.clone() }, "saved with model");
    refused(EngineOptions { act_type: "f32".parse().unwrap(), ..same.clone() }, "saved with model");
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let mut file = std::fs::read(path).unwrap();
    // The last bit of an element of the embedding.
    file[engine.gguf().find("token_embd.weight").unwrap().start as usize] ^= 1;
    let err = restored(&Engine::from_bytes(file.into(), &same).unwrap(), &bytes).unwrap_err().to_string();
    assert!(err.contains("saved with model"), "{err}");
    // Files of builds that subtracted the mean of the first page from all keys.
    let earlier = String::from_utf8_lossy(&bytes[..200]).find(" (means of pages)").unwrap();
    let earlier = [&bytes[..earlier], &bytes[earlier + " (means of pages)".len()..]].concat();
    let err = restored(&engine, &earlier).unwrap_err().to_string();
    assert!(err.contains("keys as turboquant, and this engine has turboquant (means of pages)"), "{err}");
    // Threads, batch size and context length may differ.
    let longer = EngineOptions { n_ctx: Some(1000), threads: Some(1), batch: 7, ..same };
    assert_eq!(restored(&open(&longer), &bytes).unwrap().tokens(), tokens(300));
}
