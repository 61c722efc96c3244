//! Layers with sliding window attention keep only the window, in separate pages: the results are the same, to
//! the bit, as with all positions kept, and the size of the cache matches the formula.

use std::io::Cursor;
use std::ops::ControlFlow;

use ggml_types::kv;
use sterna::Error;
use sterna::backend::NAMES;
use sterna::backend::cpu::Cpu;
use sterna::engine::{self, Batch, BatchOptions, BatchStats, Engine, EngineOptions, Request, Session};
use sterna::gguf::Gguf;
use sterna::program::PAGE;
use sterna::synth::{Family, Preset, Spec, Synth};

use super::batch::{Output, alone, check_random_schedules, codec, count, finish, greedy, tokens};
use super::hollow::hollow_of;

/// Not a multiple or divisor of the page size.
const WINDOW: usize = 70;

/// Seven layers, the sixth of which attends to all positions.
fn model(window: usize) -> Gguf {
    let spec = Spec {
        n_layers: 7,
        dim: 64,
        ffn_dim: 64,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        n_vocab: 512,
        family: Family::Gemma3 { window },
        ..Preset::by_name("gemma-3-1b").unwrap().spec(Some("f32"), Some("f32"), 3).unwrap()
    };
    written(&spec)
}

/// Ten layers of Gemma 3n, of which the last five read the caches of earlier ones, with a window and without.
fn gemma_3n(window: usize) -> Gguf {
    written(&Spec {
        n_layers: 10,
        dim: 64,
        ffn_dim: 64,
        n_heads: 4,
        n_kv_heads: 2,
        head_dim: 64,
        n_vocab: 512,
        family: Family::Gemma3n { window, shared: 5, layer_input: 32, rank: 32 },
        ..Preset::by_name("gemma-3n-e2b").unwrap().spec(Some("f32"), Some("f32"), 3).unwrap()
    })
}

fn written(spec: &Spec) -> Gguf {
    let mut file = Vec::new();
    Synth::new(spec).unwrap().write(&mut file, |_| ControlFlow::Continue(())).unwrap();
    Gguf::from_bytes(file.into()).unwrap()
}

fn options(name: &str) -> EngineOptions {
    let mut options =
        EngineOptions { threads: Some(1), n_ctx: Some(1024), batch: 80, outputs: 80, ..Default::default() };
    codec(&mut options, name);
    options
}

fn open(gguf: Gguf, options: &EngineOptions) -> Engine {
    Engine::on_backend(gguf, options, Box::new(Cpu::new(1).unwrap()), |_| ()).unwrap()
}

/// Bits of the logits after each of the tokens.
fn feed(session: &mut Session, tokens: &[u32]) -> Vec<u32> {
    let mut all = Vec::new();
    let keep = |_, logits: &[f32]| -> Result<(), Error> {
        assert!(logits.iter().all(|x| x.is_finite()));
        all.extend(logits.iter().map(|x| x.to_bits()));
        Ok(())
    };
    session.logits_each(tokens, keep).unwrap();
    all
}

/// Logits of `n` tokens in large steps, and the greedy tokens that follow.
fn run(engine: &Engine, n: usize) -> (Vec<u32>, Vec<u32>) {
    let mut session = engine.session().unwrap();
    let mut bits = feed(&mut session, &tokens(1, n));
    let mut token = 3;
    let mut picked = Vec::new();
    for _ in 0..70 {
        token = session.decode(&[token]).unwrap();
        picked.push(token);
    }
    bits.extend(feed(&mut session, &[5]));
    (bits, picked)
}

fn is_sliding(engine: &Engine) -> bool {
    engine.program().sliding().is_some()
}

/// On every backend, with every codec that it supports.
#[test]
#[ignore = "thorough: scripts/test --all"]
fn sliding_windows_match_all_positions() {
    for name in NAMES.iter().filter(|name| **name != "cuda") {
        for kv in kv::REGISTRY {
            // Page handling does not depend on the codec; other backends run one codec of each kind.
            let (is_cpu, few) = (*name == "cpu", ["f16", "q8_0", "turboquant"].contains(&kv.name()));
            if !is_cpu && !few {
                continue;
            }
            let run = |swa_full| {
                let backend = support::case::backend(name, 1)?;
                let options = EngineOptions { swa_full, ..options(kv.name()) };
                let engine = Engine::on_backend(model(WINDOW), &options, backend, |_| ()).unwrap();
                assert_eq!(is_sliding(&engine), !swa_full);
                Some((run(&engine, if is_cpu { 700 } else { 300 }), engine.plan().kv_bytes))
            };
            let (Some((windows, few)), Some((all, many))) = (run(false), run(true)) else { break };
            assert!(windows == all, "{name}, {}", kv.name());
            assert!(few < many, "{name}, {}: {few} of {many} bytes", kv.name());
        }
    }
}

/// GPT-OSS: windows of 8 in every other layer, and sinks.
#[test]
fn sliding_windows_of_gpt_oss_match_all_positions() {
    let path = support::golden("gpt-oss/tiny-mxfp4.gguf").expect("it is in tests/data");
    for kv in ["f32", "turboquant-mse"] {
        let run = |swa_full| {
            let options = EngineOptions { swa_full, ..options(kv) };
            let engine = open(Gguf::open(&path).unwrap(), &options);
            assert_eq!(is_sliding(&engine), !swa_full);
            let mut session = engine.session().unwrap();
            let tokens: Vec<u32> = tokens(2, 330).iter().map(|token| token % 96).collect();
            feed(&mut session, &tokens)
        };
        assert!(run(false) == run(true), "{kv}");
    }
}

/// If a pool for windows would not be smaller, all positions are kept.
#[test]
fn short_contexts_keep_all_positions() {
    let sliding = |n_ctx, window, n_seqs| {
        let options = EngineOptions { n_ctx: Some(n_ctx), n_seqs, ..options("f16") };
        engine::program(&model(window), &options).unwrap().sliding()
    };
    // 2 pages before a row, its own, one for cuts, and 2 of 80 rows: 6 of 16.
    assert_eq!(sliding(1024, WINDOW, 1), Some(70));
    assert_eq!((sliding(6 * PAGE, WINDOW, 1), sliding(7 * PAGE, WINDOW, 1)), (None, Some(70)));
    assert_eq!(sliding(1024, 1024, 1), None);
    // Two sequences of 4 pages, one more page per step, and 3 per checkpoint.
    assert_eq!((sliding(8 * PAGE, WINDOW, 2), sliding(9 * PAGE, WINDOW, 2)), (None, Some(70)));
}

/// Any schedule gives the same bits as a sequence alone, with so few pages that sequences wait, are
/// preempted, share prefixes and free pages before their windows; and no page leaks, which a batch checks at
/// its end.
#[test]
fn batched_sequences_match_single_ones() {
    let mut all = BatchStats::default();
    for name in ["f16", "turboquant"] {
        let mut options = EngineOptions {
            n_ctx: Some(640),
            n_seqs: 3,
            batch: 64,
            kv_positions: Some(14 * PAGE),
            checkpoints: Some(1),
            drafts: 10,
            ..options(name)
        };
        codec(&mut options, name);
        let engine = open(model(20), &options);
        assert!(is_sliding(&engine));
        count(&mut all, &check_random_schedules(&engine, name, 12, 420));
    }
    assert!(all.prefix.hit_tokens > 0 && all.preemptions > 0, "{all:?}");
    assert!(all.accepted_tokens > 100 && all.drafted_tokens > all.accepted_tokens + 20, "{all:?}");
}

/// The residual streams of Gemma 3n and its shared caches, in random schedules and after restoring.
#[test]
fn gemma_3n_matches_in_batches_and_after_restoring() {
    let options = EngineOptions {
        n_ctx: Some(640),
        n_seqs: 3,
        batch: 64,
        kv_positions: Some(14 * PAGE),
        checkpoints: Some(1),
        ..options("f16")
    };
    let engine = open(gemma_3n(20), &options);
    assert!(is_sliding(&engine));
    let stats = check_random_schedules(&engine, "Gemma 3n", 4, 420);
    assert!(stats.prefix.hit_tokens > 0, "{stats:?}");
    let mut session = engine.session().unwrap();
    session.prefill(&tokens(4, 200)).unwrap();
    let mut saved = Vec::new();
    session.save(&mut saved).unwrap();
    let other = open(gemma_3n(20), &options);
    let mut restored = other.restore(&mut Cursor::new(&saved)).unwrap();
    let after = tokens(5, 100);
    assert!(feed(&mut session, &after) == feed(&mut restored, &after));
}

fn batch(engine: &Engine) -> Batch {
    engine.batch(BatchOptions::default()).unwrap()
}

/// A prompt continues from the nearest end of an earlier prompt or text whose window is cached.
#[test]
fn prefixes_are_found_at_checkpoints() {
    let engine = open(model(WINDOW), &EngineOptions { n_seqs: 2, ..options("f16") });
    assert!(is_sliding(&engine));
    let first = tokens(1, 400);
    let next = [&first[..], &tokens(2, 30)].concat();
    let early = [&first[..200], &tokens(3, 30)].concat();
    let want: Vec<Output> =
        [&first, &next, &early].iter().map(|prompt| alone(&engine, prompt, &greedy(4))).collect();
    let mut batch = batch(&engine);
    let mut run = |prompt: &Vec<u32>| {
        let before = batch.stats().prefix.hit_tokens;
        let id = batch.add(&Request::new(prompt.clone(), greedy(4))).unwrap()[0];
        let output = finish(&mut batch).remove(&id).unwrap();
        (output, batch.stats().prefix.hit_tokens - before)
    };
    assert_eq!(run(&first), (want[0].clone(), 0));
    assert_eq!(run(&next), (want[1].clone(), 6 * PAGE as u64), "after the prompt");
    assert_eq!(run(&early), (want[2].clone(), 0), "no window is cached there");
    assert_eq!(run(&early), (want[2].clone(), 3 * PAGE as u64), "now it is cached");
}

/// After a short cut the session continues directly; after a longer one the positions of the window are
/// recomputed. The results do not differ.
#[test]
fn cuts_and_branches_leave_no_trace() {
    for name in ["f16", "q8_0", "turboquant"] {
        let engine = open(model(WINDOW), &EngineOptions { n_seqs: 3, ..options(name) });
        let trunk = tokens(2, 500);
        for (cut, branch) in [(440, 499), (437, 450), (300, 300), (130, 64), (3, 0)] {
            let mut session = engine.session().unwrap();
            session.prefill(&trunk).unwrap();
            let mut other = session.branch(branch).unwrap();
            session.cut_back(cut);
            let after = tokens(3, 90);
            let mut got = [Vec::new(), Vec::new()];
            for after in after.chunks(45) {
                got[0].extend(feed(&mut session, after));
                got[1].extend(feed(&mut other, after));
            }
            for (got, at) in got.iter().zip([cut, branch]) {
                let mut alone = engine.session().unwrap();
                alone.prefill(&trunk[..at]).unwrap();
                // Pages that were already encoded stay encoded, unless everything was recomputed.
                let exact = name != "turboquant" || at < 437;
                assert!(!exact || *got == feed(&mut alone, &after), "{name}: at {at}");
            }
        }
    }
}

/// Prompts find as much of a restored text as of the saved one; a session resumes at its end.
#[test]
fn saved_windows_are_found_again() {
    let (text, salt) = (tokens(4, 500), "".into());
    let found = |batch: &mut Batch| {
        [200, 300, 500].map(|n| {
            let id = batch.add(&Request::new(text[..n].to_vec(), greedy(1))).unwrap()[0];
            finish(batch);
            batch.stats_of(id).unwrap().cached_tokens
        })
    };
    for name in ["f16", "turboquant"] {
        let engine = || open(model(WINDOW), &EngineOptions { checkpoints: Some(8), ..options(name) });
        let (mut saved, first) = (Vec::new(), engine());
        let mut batch = batch(&first);
        found(&mut batch);
        assert_eq!(found(&mut batch), [192, 256, 448], "{name}");
        assert_eq!(batch.save(&text, &salt, &mut saved).unwrap(), 448);
        drop(batch);
        let second = engine();
        let mut batch = self::batch(&second);
        assert_eq!(batch.restore(&mut Cursor::new(&saved), &salt).unwrap(), text[..448]);
        assert_eq!(found(&mut batch), [192, 256, 448], "{name}");
        drop(batch);
        let mut session = second.restore(&mut Cursor::new(&saved)).unwrap();
        let mut other = first.session().unwrap();
        other.prefill(&text[..448]).unwrap();
        assert!(feed(&mut session, &text[448..]) == feed(&mut other, &text[448..]), "{name}");
    }
}

/// A saved session continues to the bit in an engine with another context; an engine that keeps all positions
/// refuses it.
#[test]
fn saved_sessions_include_their_windows() {
    let saved = |session: &mut Session| {
        let mut bytes = Vec::new();
        session.save(&mut bytes).unwrap();
        bytes
    };
    for name in ["f16", "turboquant"] {
        let engine = open(model(WINDOW), &options(name));
        let mut session = engine.session().unwrap();
        for n in [0, 30, 64, 500] {
            session.cut_back(0);
            session.prefill(&tokens(4, n)).unwrap();
            let bytes = saved(&mut session);
            let other = open(model(WINDOW), &EngineOptions { n_ctx: Some(800), ..options(name) });
            let mut restored = other.restore(&mut Cursor::new(&bytes)).unwrap();
            let after = tokens(5, 100);
            assert!(feed(&mut session, &after) == feed(&mut restored, &after), "{name}, {n}");
            drop(restored);
            let mut batch = batch(&other);
            batch.restore(&mut Cursor::new(&bytes), &"".into()).unwrap();
            let prompt = [tokens(4, n), vec![7, 8]].concat();
            let id = batch.add(&Request::new(prompt, greedy(1))).unwrap()[0];
            let found = batch.step().unwrap().iter().any(|(of, _)| *of == id);
            assert!(found, "more than one step after {n} cached tokens");
            finish(&mut batch);
        }
        let bytes = saved(&mut session);
        let full = open(model(WINDOW), &EngineOptions { swa_full: true, ..options(name) });
        let message = full.restore(&mut Cursor::new(&bytes)).unwrap_err().to_string();
        assert!(
            message.contains("positions of sliding windows the last 70, and this engine has all"),
            "{message}"
        );
        // An impossible list of pages is refused before any page is read.
        let head = bytes.windows(2).position(|two| two == b"\n\n").unwrap() + 2;
        let mut wrong = bytes.clone();
        let of_pages = head + 8 + 4 * session.position();
        let last = of_pages + session.position().div_ceil(PAGE) - 1;
        wrong[last] &= 1;
        let error = engine_alone(&engine, session).restore(&mut Cursor::new(&wrong)).unwrap_err();
        assert!(matches!(error, Error::State(_)), "{error}");
    }
}

/// Drops the session, and returns the engine.
fn engine_alone(engine: &Engine, session: Session) -> &Engine {
    drop(session);
    engine
}

/// 4 of 26 layers keep all positions, 22 keep 10 pages and the 8 of a step.
#[test]
fn gemma_3_with_131072_positions_matches_the_formula() {
    const POSITIONS: u64 = 131_072;
    let dir = tempfile::tempdir().unwrap();
    let spec = Preset::by_name("gemma-3-1b").unwrap().spec(None, None, 1).unwrap();
    let gguf = hollow_of(&spec, dir.path());
    let with = |codec: &str, swa_full| EngineOptions {
        n_ctx: Some(POSITIONS as usize),
        batch: 512,
        outputs: 1,
        swa_full,
        ..options(codec)
    };
    // One KV head of 256 elements; exact pages: 1 of sinks, 3 of the newest positions, and 8 of a step. The
    // mean of a page's keys takes 256 bytes, 2 of its scale and 14 of padding.
    let exact = 12 * 2 * 64 * 256 * 2;
    for (name, vec_bytes, mean, exact) in
        [("f16", 512, 0, 0), ("q8_0", 272, 0, 0), ("turboquant", 98, 272, exact)]
    {
        let page = 64 * 2 * vec_bytes + mean;
        let want = page * (4 * POSITIONS / 64 + 22 * (10 + 8)) + 26 * exact;
        let program = engine::program(&gguf, &with(name, false)).unwrap();
        assert_eq!((program.sliding(), program.limits.sliding_pages), (Some(512), 18));
        assert_eq!(program.kv_bytes(), want, "{name}");
        for backend in NAMES.iter().filter(|name| **name != "cuda") {
            let Some(backend) = support::case::backend(backend, 1) else { continue };
            let Ok(plan) = backend.plan(&program) else { continue };
            assert_eq!(plan.kv_bytes, want, "{name} on {}", backend.device());
        }
        let all = engine::program(&gguf, &with(name, true)).unwrap().kv_bytes();
        assert_eq!(all, 26 * (page * POSITIONS / 64 + exact), "{name}");
    }
}
