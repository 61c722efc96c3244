//! Sessions over every KV codec: repeated runs, a cut, a branch and interleaved sessions give the same bits
//! as a single session.

use ggml_types::kv;
use sterna::engine::{Engine, EngineOptions, Session};

fn engine(codec: &str) -> Engine {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let options = EngineOptions {
        device: "cpu".parse().unwrap(),
        threads: Some(3),
        n_ctx: Some(384),
        batch: 80,
        outputs: 80,
        n_seqs: 3,
        cache_type_k: codec.parse().unwrap(),
        cache_type_v: codec.parse().unwrap(),
        ..EngineOptions::default()
    };
    Engine::open(path, &options).unwrap()
}

/// An arbitrary token sequence.
fn tokens(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (seed * 131 + i * i * 7 + i * 13) % 500).collect()
}

/// Bits of the logits after each of the tokens.
fn feed(session: &mut Session, tokens: &[u32]) -> Vec<u32> {
    let mut all = Vec::new();
    let keep = |_, logits: &[f32]| -> Result<(), sterna::Error> {
        assert!(logits.iter().all(|x| x.is_finite()));
        all.extend(logits.iter().map(|x| x.to_bits()));
        Ok(())
    };
    session.logits_each(tokens, keep).unwrap();
    all
}

/// Bits of the logits of `after` in a new session that was given `before`.
fn alone(engine: &Engine, before: &[u32], after: &[u32]) -> Vec<u32> {
    let mut session = engine.session().unwrap();
    session.prefill(before).unwrap();
    feed(&mut session, after)
}

#[test]
fn repeated_runs_give_the_same_bits() {
    for codec in kv::REGISTRY {
        let run = || alone(&engine(codec.name()), &[], &tokens(1, 210));
        let first = run();
        for _ in 1..4 {
            assert!(run() == first, "{}", codec.name());
        }
    }
}

#[test]
fn cuts_and_branches_leave_no_trace() {
    for codec in kv::REGISTRY {
        let engine = engine(codec.name());
        let (trunk, left, right) = (tokens(2, 300), tokens(3, 20), tokens(4, 20));
        let mut session = engine.session().unwrap();
        session.prefill(&trunk).unwrap();
        let mut branch = session.branch(270).unwrap();
        session.cut_back(250);
        // Interleaved, so that a write to a shared page would show.
        let mut got = [Vec::new(), Vec::new()];
        for (left, right) in left.chunks(10).zip(right.chunks(10)) {
            got[0].extend(feed(&mut session, left));
            got[1].extend(feed(&mut branch, right));
        }
        assert!(got[0] == alone(&engine, &trunk[..250], &left), "{}: the cut", codec.name());
        assert!(got[1] == alone(&engine, &trunk[..270], &right), "{}: the branch", codec.name());
    }
}

#[test]
fn interleaved_sessions_are_independent() {
    for codec in kv::REGISTRY {
        let engine = engine(codec.name());
        let texts = [tokens(5, 200), tokens(6, 200)];
        let mut sessions = [engine.session().unwrap(), engine.session().unwrap()];
        let mut got = [Vec::new(), Vec::new()];
        for start in (0..200).step_by(50) {
            for (i, session) in sessions.iter_mut().enumerate() {
                got[i].extend(feed(session, &texts[i][start..start + 50]));
            }
        }
        for (got, text) in got.iter().zip(&texts) {
            assert!(*got == alone(&engine, &[], text), "{}", codec.name());
        }
    }
}

/// Any codec of keys works with any of values; `tq3_0` values are stored as 3-bit codes, with a warning.
#[test]
fn keys_and_values_can_have_different_codecs() {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let open = |k: &str, v: &str| {
        let options = EngineOptions {
            device: "cpu".parse().unwrap(),
            threads: Some(1),
            n_ctx: Some(384),
            outputs: 100,
            cache_type_k: k.parse().unwrap(),
            cache_type_v: v.parse().unwrap(),
            ..EngineOptions::default()
        };
        Engine::open(&path, &options).unwrap()
    };
    let run = |k, v| alone(&open(k, v), &[], &tokens(4, 300));
    let same = run("tq3_0", "turboquant");
    assert!(run("turboquant-prod", "tq3_0") == same, "the alias, and `tq3_0` for values");
    for v in ["f16", "turboquant-4", "q8_0"] {
        assert!(run("tq3_0", v) != same, "{v}");
    }
    let warns =
        |k, v| open(k, v).warnings().iter().any(|line| line.contains("values are stored as turboquant"));
    assert!(warns("tq3_0", "tq3_0") && warns("f16", "tq3_0"));
    assert!(!warns("tq3_0", "turboquant") && !warns("tq3_0", "f16"));
}
