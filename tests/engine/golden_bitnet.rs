//! The BitNet models of `golden/bitnet` against the results of other implementations.

use std::path::{Path, PathBuf};

use sterna::backend::Backend;
use sterna::backend::cpu::Cpu;
use sterna::backend::cpu::simd::{self, Kernels};
use sterna::engine::{Engine, EngineOptions, HeadType, Session};
use sterna::gguf::Gguf;
use sterna::model::{Hyper, Model, Options};
use sterna::program::{Limits, PageTable, Row, Step, sampling};
use support::logits::{all_logits, distance};
use support::{golden, npy};

const N_VOCAB: usize = 640;

/// A model and its references.
struct Case {
    model: &'static str,
    spec: &'static str,
    spec_kv16: Option<&'static str>,
    bitnetcpp: &'static str,
}

const CASES: [Case; 3] = [
    Case {
        model: "tiny-i2_s.gguf",
        spec: "i2_s.spec-fp64",
        spec_kv16: Some("i2_s.spec-fp64-kv16"),
        bitnetcpp: "i2_s.bitnetcpp-batch",
    },
    Case {
        model: "tiny-i2_s-embq8_0.gguf",
        spec: "i2_s-embq8_0.spec-fp64",
        spec_kv16: None,
        bitnetcpp: "i2_s-embq8_0.bitnetcpp-batch",
    },
    Case {
        model: "wide-i2_s-embq6k.gguf",
        spec: "wide-i2_s-embq6k.spec-fp64",
        spec_kv16: Some("wide-i2_s-embq6k.spec-fp64-kv16"),
        bitnetcpp: "wide-i2_s-embq6k.bitnetcpp-batch",
    },
];

fn bitnet(name: &str) -> Option<PathBuf> {
    golden(&format!("bitnet/{name}"))
}

fn logits_of(name: &str) -> Option<Vec<f32>> {
    let file = npy(&bitnet(&format!("{name}.logits.npy"))?);
    assert_eq!(file.shape, [180, N_VOCAB]);
    Some(file.f32s())
}

fn prompts() -> Vec<Vec<u32>> {
    support::logits::sequences(&golden("prompts.txt").expect("prompts.txt is in tests/data"))
}

fn engine(
    path: &Path,
    kv: &str,
    kernels: &'static Kernels,
    change: impl FnOnce(&mut EngineOptions),
) -> Engine {
    support::logits::engine(Gguf::open(path).unwrap(), kv, kernels, change)
}

fn best_engine(change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let path = bitnet("tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    engine(&path, "f16", simd::best(), change)
}

// The bounds below are those measured between correct implementations (golden/README.md): a flipped int8 step
// changes every later logit, so only position 0 is precise.

#[test]
fn logits_with_an_f32_cache_match_the_f64_specification() {
    for case in &CASES {
        let (Some(path), Some(want)) = (bitnet(case.model), logits_of(case.spec)) else { continue };
        for kernels in simd::all() {
            let got =
                distance(&all_logits(&engine(&path, "f32", kernels, |_| ()), &prompts()), &want, &prompts());
            eprintln!("{}, f32 cache, {}: {got:?}", case.model, kernels.name);
            assert!(got.first <= 1e-3 && got.mean <= 0.04, "{}, {}: {got:?}", case.model, kernels.name);
        }
    }
}

#[test]
fn logits_with_an_f16_cache_match_both_references() {
    for case in &CASES {
        let (Some(path), Some(bitnetcpp)) = (bitnet(case.model), logits_of(case.bitnetcpp)) else { continue };
        let spec = case.spec_kv16.and_then(logits_of);
        for kernels in simd::all() {
            let got = all_logits(&engine(&path, "f16", kernels, |_| ()), &prompts());
            let name = format!("{}, f16 cache, {}", case.model, kernels.name);
            let far = distance(&got, &bitnetcpp, &prompts());
            eprintln!("{name}: distance to bitnet.cpp {far:?}");
            assert!(far.mean <= 0.08 && far.mean_cosine > 0.9993, "{name}: {far:?}");
            let Some(spec) = &spec else { continue };
            let far = distance(&got, spec, &prompts());
            eprintln!("{name}: distance to the specification {far:?}");
            assert!(far.first <= 1e-3 && far.mean <= 0.08 && far.mean_cosine > 0.9993, "{name}: {far:?}");
        }
    }
}

#[test]
fn stages_match_the_trace() {
    let path = bitnet("tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let gguf = Gguf::open(&path).unwrap();
    let f32_codec = ggml_types::kv_by_name("f32").unwrap();
    let limits =
        Limits { rows: 9, outputs: 1, seqs: 1, pages: 1, exact_pages: 0, sliding_pages: 0, states: 0 };
    let hyper = Hyper::read(gguf.metadata(), N_VOCAB).unwrap();
    let model = Model::build(&gguf, hyper, &Options::new(limits, f32_codec, f32_codec)).unwrap();
    let prompt = &prompts()[1];
    let rows: Vec<Row> =
        (0..9).map(|pos| Row { token: prompt[pos as usize], pos, seq: 0, logits: false }).collect();
    let mut pages = PageTable::new(1, 1);
    pages.seq_mut(0).push(0);
    let step = Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] };

    // Label of the stage, its output buffer, and the name in the trace.
    let traced = [
        ("embed", "x", "embd"),
        ("0.attn_in", "q", "blk.0.q_rope"),
        ("0.attend", "y", "blk.0.attn_heads"),
        ("0.attn_out", "x", "blk.0.after_attn"),
        ("0.ffn_in", "h", "blk.0.ffn_act"),
        ("0.ffn_out", "x", "blk.0.out"),
        ("1.ffn_out", "x", "blk.1.out"),
        ("2.ffn_out", "x", "blk.2.out"),
    ];
    for kernels in simd::all() {
        let mut cpu = Cpu::with_kernels(1, kernels).unwrap();
        let weights: Vec<_> = model.weights.iter().map(|w| cpu.upload(&w.read().unwrap()).unwrap()).collect();
        let exec = cpu.compile(&model.program, &weights).unwrap();
        let mut done = 0;
        for (label, buf, file) in traced {
            let next = 1 + model.program.stages.iter().position(|(name, _)| name == label).unwrap();
            cpu.run_stages(exec, done..next, &step).unwrap();
            done = next;
            let want = npy(&bitnet(&format!("trace/{file}.npy")).expect("the trace is in tests/data")).f32s();
            let mut got = vec![0.0; want.len()];
            cpu.read(exec, model.program.buf_named(buf).unwrap(), 0, &mut got).unwrap();
            let scale = want.iter().fold(0f32, |max, value| max.max(value.abs()));
            let far = got.iter().zip(&want).fold(0f32, |max, (a, b)| max.max((a - b).abs()));
            eprintln!("{}: {label}: {far:e} of {scale:e}", kernels.name);
            // f32 arithmetic of a few hundred terms compared with f64: 1e-5 of the largest value if no int8
            // step flips, and none does in this prompt.
            assert!(far <= 1e-5 * scale, "{}: {label} {buf}: {far:e} of {scale:e}", kernels.name);
        }
    }
}

#[test]
fn greedy_tokens_match_where_the_margin_is_clear() {
    /// Above this margin no two correct implementations ever differed (golden/README.md).
    const CLEAR: f32 = 0.4;
    for (model, reference, kv) in [
        ("tiny-i2_s.gguf", "i2_s.spec-fp64", "f32"),
        ("tiny-i2_s.gguf", "i2_s.spec-fp64-kv16", "f16"),
        ("tiny-i2_s-embq8_0.gguf", "i2_s-embq8_0.spec-fp64", "f32"),
        ("wide-i2_s-embq6k.gguf", "wide-i2_s-embq6k.spec-fp64", "f32"),
        ("wide-i2_s-embq6k.gguf", "wide-i2_s-embq6k.bitnetcpp-single", "f16"),
    ] {
        let files =
            [model.to_owned(), format!("{reference}.greedy.txt"), format!("{reference}.greedy-margin.npy")];
        let [Some(model), Some(text), Some(margins)] = files.map(|file| bitnet(&file)) else { continue };
        let (want, margins) = (support::logits::sequences(&text), npy(&margins).f32s());
        let engine = engine(&model, kv, simd::best(), |_| ());
        let mut session = engine.session().unwrap();
        let mut compared = 0;
        for (index, prompt) in prompts().iter().enumerate() {
            session.cut_back(0);
            let mut next = prompt.clone();
            for (at, &token) in want[index].iter().enumerate() {
                let got = sampling::argmax(session.logits(&next).unwrap());
                if margins[index * 48 + at] > CLEAR {
                    assert_eq!(got, token, "{reference}: prompt {index}, token {at}");
                    compared += 1;
                }
                next = vec![token];
            }
        }
        assert!(compared > 150, "{reference}: only {compared} of 192 steps are clear");
    }
}

/// Greedy tokens of a prompt on a backend; `None` if the backend is not available.
fn greedy(path: &Path, backend: &str, kv: &str, prompt: &[u32], n: usize) -> Option<Vec<u32>> {
    let options = EngineOptions {
        n_ctx: Some(192),
        cache_type_k: kv.parse().unwrap(),
        cache_type_v: kv.parse().unwrap(),
        ..EngineOptions::default()
    };
    let backend = support::case::backend(backend, options.n_threads())?;
    let engine = Engine::on_backend(Gguf::open(path).unwrap(), &options, backend, |_| ()).unwrap();
    let mut session = engine.session().unwrap();
    let mut next = prompt.to_vec();
    let mut picked = Vec::new();
    while picked.len() < n {
        next = vec![session.decode(&next).unwrap()];
        picked.extend(&next);
    }
    Some(picked)
}

/// CUDA with the kernels on the CPU, and wgpu.
#[test]
fn greedy_tokens_match_on_every_backend() {
    for (model, kv, prompt, n) in [
        ("tiny-i2_s.gguf", "f16", 3, 16),
        ("tiny-i2_s.gguf", "f32", 1, 6),
        ("tiny-i2_s-embq8_0.gguf", "f16", 1, 6),
        ("wide-i2_s-embq6k.gguf", "f16", 1, 6),
    ] {
        let Some(path) = bitnet(model) else { continue };
        let prompt = &prompts()[prompt];
        let cpu = greedy(&path, "cpu", kv, prompt, n);
        for name in ["cuda-simt", "wgpu"] {
            let Some(got) = greedy(&path, name, kv, prompt, n) else { continue };
            assert_eq!(Some(got), cpu, "{name}: {model}, {kv} cache, prompt of {}", prompt.len());
        }
    }
}

/// Only the head is quantised: logits change by its quantisation error, and no layer before it changes.
#[test]
fn logits_of_a_quantised_head_are_close() {
    let logits = |head: &str| {
        let engine = best_engine(|options| options.head_type = head.parse().unwrap());
        assert_eq!(engine.head_type(), if head == "keep" { "f16" } else { head });
        all_logits(&engine, &prompts())
    };
    let (want, got) = (logits("keep"), logits("q8_0"));
    let far = distance(&got, &want, &prompts());
    // Steps of 1/127 of a block's largest weight, 384 per logit; logits have a standard deviation of 3.
    assert!(far.mean > 0.0 && far.mean < 0.02 && far.mean_cosine > 0.9999, "{far:?}");

    let path = bitnet("tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let options = EngineOptions { head_type: HeadType::Q6K, ..EngineOptions::default() };
    let error = Engine::open(&path, &options).map(drop).unwrap_err().to_string();
    assert!(error.contains("which is not a multiple of 256"), "{error}");
    let unknown = "q3".parse::<HeadType>().unwrap_err().to_string();
    assert_eq!(unknown, "want one of keep, q8_0, q6_k, got q3");
}

fn last_logits(session: &mut Session, tokens: &[u32]) -> Vec<f32> {
    session.logits(tokens).unwrap().to_vec()
}

#[test]
fn prefill_matches_single_steps() {
    let tokens = &prompts()[3];
    let single_engine = best_engine(|_| ());
    let mut single = single_engine.session().unwrap();
    let one_by_one: Vec<Vec<f32>> = tokens.iter().map(|&token| last_logits(&mut single, &[token])).collect();
    for batch in [512, 64, 7] {
        let engine = best_engine(|options| options.batch = batch);
        let mut session = engine.session().unwrap();
        for n in [1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130] {
            session.cut_back(0);
            // The same kernels with sums in the same order.
            assert_eq!(
                last_logits(&mut session, &tokens[..n]),
                one_by_one[n - 1],
                "{n} tokens, batch {batch}"
            );
        }
    }
}

#[test]
fn cut_back_sessions_match_shorter_ones() {
    let tokens = &prompts()[3];
    let engine = best_engine(|options| options.n_seqs = 2);
    let (mut cut, mut fresh) = (engine.session().unwrap(), engine.session().unwrap());
    for n in [1, 62, 63, 64, 65, 100, 128] {
        cut.cut_back(0);
        cut.prefill(tokens).unwrap();
        cut.cut_back(n);
        assert_eq!(cut.tokens(), &tokens[..n]);
        fresh.cut_back(0);
        fresh.prefill(&tokens[..n]).unwrap();
        let other: Vec<u32> = (0..40).map(|token| token * 7 + 1).collect();
        assert_eq!(last_logits(&mut cut, &other), last_logits(&mut fresh, &other), "cut back to {n}");
    }
}

#[test]
fn interleaved_sessions_are_independent() {
    let prompts = prompts();
    let engine = best_engine(|options| options.n_seqs = 2);
    let alone: Vec<Vec<f32>> =
        [1, 3].map(|prompt| last_logits(&mut engine.session().unwrap(), &prompts[prompt])).to_vec();
    let (mut a, mut b) = (engine.session().unwrap(), engine.session().unwrap());
    assert!(matches!(engine.session(), Err(sterna::Error::NoSession { n_seqs: 2 })));
    let (mut last_a, mut last_b) = (Vec::new(), Vec::new());
    for chunk in 0..9 {
        last_a = last_logits(&mut a, &prompts[1][chunk..=chunk]);
        let end = if chunk == 8 { 130 } else { 15 * (chunk + 1) };
        last_b = last_logits(&mut b, &prompts[3][15 * chunk..end]);
    }
    assert_eq!([last_a, last_b], alone[..]);
    drop(a);
    assert!(engine.session().is_ok());
}
