//! Models of which the CPU backend keeps a part in memory and reads the rest from the file in every step: the
//! same logits as with a mapped file, and an error if the file is truncated while in use.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use sterna::Error;
use sterna::backend::DeviceOptions;
use sterna::engine::{Engine, EngineOptions, HeadType};
use sterna::gguf::Access;
use sterna::synth::{Preset, Synth};

/// Options for this many layers in memory, if given.
fn options(resident: Option<&str>, slots: &str) -> EngineOptions {
    let resident_layers = resident.map(|n| n.parse().unwrap());
    let stream_slots = resident.map(|_| slots.parse().unwrap());
    EngineOptions {
        device: DeviceOptions { resident_layers, stream_slots, .."cpu".parse().unwrap() },
        threads: Some(2),
        n_ctx: Some(128),
        ..EngineOptions::default()
    }
}

/// Bits of the logits after a prompt and after each of some greedy tokens.
fn bits(engine: &Engine) -> Vec<u32> {
    let mut session = engine.session().unwrap();
    let mut logits = session.logits(&[1, 7, 33, 64, 3]).unwrap();
    let mut bits = Vec::new();
    for _ in 0..8 {
        bits.extend(logits.iter().map(|x| x.to_bits()));
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        logits = session.logits(&[best as u32]).unwrap();
    }
    bits
}

fn is_reported(engine: &Engine) -> bool {
    engine.warnings().iter().any(|note| note.contains("are read from the file in every step"))
}

/// Tied and untied heads, experts, biases, and a fused tensor of queries, keys and values.
#[test]
fn streamed_logits_match_a_mapped_model() {
    for name in [
        "bitnet/tiny-i2_s.gguf",
        "llama-i2_s/tiny-i2_s.gguf",
        "gpt-oss/tiny-mxfp4.gguf",
        "minicpm/tiny-points.gguf",
        "qwen3/tiny-f16.gguf",
    ] {
        let path = support::golden(name).expect("it is in tests/data");
        let mapped = Engine::open(&path, &options(None, "")).unwrap();
        assert!(!is_reported(&mapped), "{name}: streamed although it fits");
        let want = bits(&mapped);
        for (resident, slots) in [("none", "1"), ("0", "2"), ("1", "3")] {
            let options = options(Some(resident), slots);
            let streamed = Engine::open(&path, &options).unwrap();
            assert!(is_reported(&streamed), "{:?}", streamed.warnings());
            assert!(streamed.plan().weights_bytes < mapped.plan().weights_bytes || resident != "none");
            assert!(bits(&streamed) == want, "{name}, {resident} in memory, {slots} slots");
            let read = EngineOptions { access: Access::Read, ..options.clone() };
            assert!(bits(&Engine::open(&path, &read).unwrap()) == want, "{name}, read");
            let bytes = Bytes::from(std::fs::read(&path).unwrap());
            let from_source = Engine::from_source(Arc::new(bytes), &options, |_| ()).unwrap();
            assert!(bits(&from_source) == want, "{name}, from a reader");
        }
    }
}

fn synthetic(preset: &str, path: &Path) {
    let spec = Preset::by_name(preset).unwrap().spec(None, None, 1).unwrap();
    let file = std::fs::File::create(path).unwrap();
    Synth::new(&spec).unwrap().write(file, |_| std::ops::ControlFlow::Continue(())).unwrap();
}

/// A mapped file would end the process with a signal.
#[test]
fn truncated_files_are_an_error_of_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    synthetic("tiny", &path);
    let whole = std::fs::read(&path).unwrap();
    let engine = Engine::open(&path, &options(Some("none"), "2")).unwrap();
    let want = bits(&engine);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(whole.len() as u64 / 3).unwrap();
    let mut session = engine.session().unwrap();
    // The first layers of a step may have been read ahead before.
    let error = (0..3).find_map(|_| session.logits(&[5]).err()).expect("an error");
    let message = error.to_string();
    assert!(matches!(error, Error::Backend(_)), "{error:?}");
    assert!(
        message.contains("reading a weight again") && message.contains("the file has become shorter"),
        "{message}"
    );
    drop(session);
    // With the bytes restored, the engine works again.
    std::fs::write(&path, &whole).unwrap();
    assert!(bits(&engine) == want);
}

/// A head that is converted while loading cannot be read from the file again, so it must stay in memory.
#[test]
fn converted_heads_stay_in_memory() {
    let path = support::golden("qwen3/tiny-f16.gguf").expect("it is in tests/data");
    let of = |resident| EngineOptions { head_type: HeadType::Q8_0, ..options(resident, "2") };
    let want = bits(&Engine::open(&path, &of(None)).unwrap());
    assert!(bits(&Engine::open(&path, &of(Some("0"))).unwrap()) == want);
    let message = Engine::open(&path, &of(Some("none"))).map(drop).unwrap_err().to_string();
    assert!(message.contains("is converted while it is loaded"), "{message}");
}
