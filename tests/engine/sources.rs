//! Models loaded through a reader: the same bits as from a mapped file, on every backend, and read errors.

use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sterna::Error;
use sterna::backend::{self, NAMES};
use sterna::engine::{Engine, EngineOptions};
use sterna::gguf::{Access, Source};

fn options(backend: &str, head_type: &str) -> EngineOptions {
    EngineOptions {
        device: backend.parse().unwrap(),
        threads: Some(2),
        n_ctx: Some(128),
        head_type: head_type.parse().unwrap(),
        ..EngineOptions::default()
    }
}

/// Bits of the logits after a prompt and after each of some greedy tokens.
fn bits(engine: &Engine) -> Vec<u32> {
    let mut session = engine.session().unwrap();
    let mut logits = session.logits(&[1, 7, 33, 64, 3]).unwrap();
    let mut bits = Vec::new();
    for _ in 0..12 {
        bits.extend(logits.iter().map(|x| x.to_bits()));
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap();
        logits = session.logits(&[best as u32]).unwrap();
    }
    bits
}

/// Both engines use the same backend and kernels, so the sums have the same order.
#[test]
fn logits_match_a_mapped_file_to_the_bit() {
    for (name, heads) in [
        ("bitnet/tiny-i2_s.gguf", &["keep", "q8_0"][..]),
        ("gpt-oss/tiny-mxfp4.gguf", &["keep"]),
        ("qwen3/tiny-f16.gguf", &["keep"]),
    ] {
        let path = support::golden(name).expect("it is in tests/data");
        for backend in NAMES.iter().filter(|name| backend::open(name, 1).is_ok()) {
            // Conversion of the head does not depend on the device.
            for head in heads.iter().filter(|head| **head == "keep" || *backend == "cpu") {
                let options = options(backend, head);
                let mapped = match Engine::open(&path, &options) {
                    Ok(engine) => engine,
                    Err(Error::Backend(_)) => continue,
                    Err(error) => panic!("{error}"),
                };
                let want = bits(&mapped);
                let read = EngineOptions { access: Access::Read, ..options.clone() };
                assert!(bits(&Engine::open(&path, &read).unwrap()) == want, "{name} on {backend}, read");
                let bytes = Bytes::from(std::fs::read(&path).unwrap());
                let mut last = 0;
                let from_source = Engine::from_source(Arc::new(bytes), &options, |progress| {
                    assert!((last..=progress.total_bytes).contains(&progress.done_bytes));
                    last = progress.done_bytes;
                })
                .unwrap();
                assert!(bits(&from_source) == want, "{name} on {backend}, from a reader");
                // Both engines have the same fingerprint, so a session can move between them.
                let (mut saved, mut session) = (Vec::new(), mapped.session().unwrap());
                session.prefill(&[1, 7, 33]).unwrap();
                session.save(&mut saved).unwrap();
                let restored = from_source.restore(&mut io::Cursor::new(&saved)).unwrap();
                assert_eq!(restored.tokens(), [1, 7, 33]);
            }
        }
    }
}

/// A source that fails after `left` reads.
struct Breaking {
    bytes: Bytes,
    left: Mutex<usize>,
}

impl Source for Breaking {
    fn file_bytes(&self) -> u64 {
        self.bytes.file_bytes()
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let mut left = self.left.lock().unwrap();
        *left = left.checked_sub(1).ok_or_else(|| io::Error::other("disconnected"))?;
        self.bytes.read_at(at, into)
    }
}

#[test]
fn reader_failures_are_errors() {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("it is in tests/data");
    let bytes = Bytes::from(std::fs::read(path).unwrap());
    let load = |n: usize| {
        let source = Arc::new(Breaking { bytes: bytes.clone(), left: Mutex::new(n) });
        Engine::from_source(source, &options("cpu", "keep"), |_| ()).map(drop)
    };
    let mut n = 0;
    while let Err(error) = load(n) {
        assert!(error.to_string().contains("disconnected"), "{n} reads: {error}");
        n += 1;
    }
    assert!(n > 10, "{n} reads");
}

/// Invalid codes are also found if rows are read in parts.
#[test]
fn invalid_codes_are_reported_by_tensor_and_row() {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("it is in tests/data");
    let mut bytes = std::fs::read(path).unwrap();
    let gguf = sterna::gguf::Gguf::from_bytes(bytes.clone().into()).unwrap();
    let info = gguf.tensors().iter().rfind(|info| info.ty.is_some_and(|ty| ty.name() == "i2_s")).unwrap();
    let row = info.rows() - 1;
    bytes[info.start as usize + row * info.cols() / 4] |= 0b1100_0000;
    for backend in NAMES.iter().filter(|name| backend::open(name, 1).is_ok()) {
        let bytes = Arc::new(Bytes::from(bytes.clone()));
        let error = match Engine::from_source(bytes, &options(backend, "keep"), |_| ()) {
            Err(error @ Error::Model(_)) => error.to_string(),
            Err(Error::Backend(_)) => continue,
            other => panic!("{:?}", other.err()),
        };
        assert!(error.contains(&info.name) && error.ends_with(&format!("in row {row}")), "{error}");
    }
}
