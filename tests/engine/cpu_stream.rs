//! Models in files of which the processor keeps a part in memory and reads the rest in every step: the logits
//! of a model that is mapped, and what becomes of a file that is cut short while it is in use.

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use sterna::Error;
use sterna::backend::DeviceOptions;
use sterna::engine::{Engine, EngineOptions, HeadType};
use sterna::gguf::Access;
use sterna::synth::{Preset, Synth};

/// With so many layers in memory, if that is said.
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

/// The logits behind a prompt and behind each of some greedy tokens, to the bit.
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

fn is_told(engine: &Engine) -> bool {
    engine.warnings().iter().any(|note| note.contains("are read from the file in every step"))
}

/// Heads of their own and tied ones, experts, biases, one tensor for queries, keys and values.
#[test]
fn logits_are_those_of_a_mapped_model_to_the_bit() {
    for name in [
        "bitnet/tiny-i2_s.gguf",
        "llama-i2_s/tiny-i2_s.gguf",
        "gpt-oss/tiny-mxfp4.gguf",
        "minicpm/tiny-points.gguf",
        "qwen3/tiny-f16.gguf",
    ] {
        let path = support::golden(name).expect("it is in tests/data");
        let mapped = Engine::open(&path, &options(None, "")).unwrap();
        assert!(!is_told(&mapped), "{name}: it has room");
        let want = bits(&mapped);
        for (resident, slots) in [("none", "1"), ("0", "2"), ("1", "3")] {
            let options = options(Some(resident), slots);
            let streamed = Engine::open(&path, &options).unwrap();
            assert!(is_told(&streamed), "{:?}", streamed.warnings());
            assert!(streamed.plan().weights_bytes < mapped.plan().weights_bytes || resident != "none");
            assert!(bits(&streamed) == want, "{name}, {resident} in memory, {slots} slots");
            let read = EngineOptions { access: Access::Read, ..options.clone() };
            assert!(bits(&Engine::open(&path, &read).unwrap()) == want, "{name}, read");
            let bytes = Bytes::from(std::fs::read(&path).unwrap());
            let of_source = Engine::from_source(Arc::new(bytes), &options, |_| ()).unwrap();
            assert!(bits(&of_source) == want, "{name}, from a reader");
        }
    }
}

fn synthetic(preset: &str, path: &Path) {
    let spec = Preset::by_name(preset).unwrap().spec(None, None, 1).unwrap();
    let file = std::fs::File::create(path).unwrap();
    Synth::new(&spec).unwrap().write(file, |_| std::ops::ControlFlow::Continue(())).unwrap();
}

/// A map of the file would end the process with a signal here.
#[test]
fn a_file_that_is_cut_short_is_an_error_of_the_next_step() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    synthetic("tiny", &path);
    let whole = std::fs::read(&path).unwrap();
    let engine = Engine::open(&path, &options(Some("none"), "2")).unwrap();
    let want = bits(&engine);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(whole.len() as u64 / 3).unwrap();
    let mut session = engine.session().unwrap();
    // What was read before may serve a step's first layers.
    let error = (0..3).find_map(|_| session.logits(&[5]).err()).expect("an error");
    let said = error.to_string();
    assert!(matches!(error, Error::Backend(_)), "{error:?}");
    assert!(
        said.contains("reading a weight again") && said.contains("the file has become shorter"),
        "{said}"
    );
    drop(session);
    // With its bytes back, the model goes on.
    std::fs::write(&path, &whole).unwrap();
    assert!(bits(&engine) == want);
}

/// A head that is encoded when it is loaded cannot be read again; with one that stays there is no need to.
#[test]
fn a_head_of_another_type_stays_in_memory() {
    let path = support::golden("qwen3/tiny-f16.gguf").expect("it is in tests/data");
    let of = |resident| EngineOptions { head_type: HeadType::Q8_0, ..options(resident, "2") };
    let want = bits(&Engine::open(&path, &of(None)).unwrap());
    assert!(bits(&Engine::open(&path, &of(Some("0"))).unwrap()) == want);
    let said = Engine::open(&path, &of(Some("none"))).map(drop).unwrap_err().to_string();
    assert!(said.contains("is converted while it is loaded"), "{said}");
}
