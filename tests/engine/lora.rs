//! LoRA adapters against transformers' logits (`golden/lora`), alone, mixed and in batches; and adapters that
//! are not of the model.

use std::sync::Arc;

use sterna::backend::Backend;
use sterna::backend::cpu::simd;
use sterna::engine::{
    ActType, Adapter, AdapterScale, Batch, BatchOptions, Engine, EngineOptions, Request, Session, StopReason,
};
use sterna::gguf::Gguf;
use support::case::{backend, simt, wgpus};
use support::logits::{Distance, all_logits, distance, sequences};
use support::lora::{file, keys};
use support::{golden, npy};

use super::batch::{greedy, tokens};

/// A model with adapters and their scales, and the logits that transformers computes.
struct Case {
    model: &'static str,
    adapters: &'static [(&'static str, f32)],
    reference: &'static str,
    bound: Bound,
}

enum Bound {
    /// f32 sums in another order: 1e-4 at any position.
    Floats,
    /// Layers quantise their input to int8, which changes logits if a step flips; the mean is golden's, of
    /// which only position 0 is precise.
    Int8(f64),
}

const fn floats(
    model: &'static str,
    adapters: &'static [(&'static str, f32)],
    reference: &'static str,
) -> Case {
    Case { model, adapters, reference, bound: Bound::Floats }
}

const CASES: &[Case] = &[
    floats("llama/tiny-f16.gguf", &[("llama-a", 1.0)], "llama-a.hf-fp32"),
    floats("llama/tiny-f16.gguf", &[("llama-a", 0.5)], "llama-a@0.5.hf-fp32"),
    floats("llama/tiny-f16.gguf", &[("llama-b", 1.0)], "llama-b.hf-fp32"),
    floats("llama/tiny-f16.gguf", &[("llama-c", 1.0)], "llama-c.hf-fp32"),
    floats("llama/tiny-f16.gguf", &[("llama-a", 0.5), ("llama-b", 1.0)], "llama-a@0.5+llama-b.hf-fp32"),
    floats("llama/tiny-q4_k.gguf", &[("llama-a", 1.0)], "q4_k.llama-a.hf-dequant-fp32"),
    floats("qwen3/tiny-f16.gguf", &[("qwen3-a", 1.0)], "qwen3-a.hf-fp32"),
    floats("qwen3moe/tiny-f16.gguf", &[("qwen3moe-a", 1.0)], "qwen3moe-a.hf-fp32"),
    floats("qwen3moe/tiny-f16.gguf", &[("qwen3moe-t", 1.0)], "qwen3moe-t.hf-fp32"),
    floats("qwen35/tiny-f16.gguf", &[("qwen35-a", 1.0)], "qwen35-a.hf-fp32"),
    Case {
        bound: Bound::Int8(0.04),
        ..floats("bitnet/tiny-i2_s.gguf", &[("bitnet-a", 1.0)], "bitnet-a.hf-fp32")
    },
    Case {
        bound: Bound::Int8(0.02),
        ..floats("llama-i2_s/tiny-i2_s.gguf", &[("llama-i2_s-a", 1.0)], "llama-i2_s-a.hf-fp32")
    },
];

fn adapter(name: &str) -> Option<Adapter> {
    let path = golden(&format!("lora/{name}.gguf"))?;
    Some(Adapter::new(name, Gguf::open(&path).expect("a golden file")).expect("a valid adapter"))
}

fn model(name: &str) -> Option<Gguf> {
    Some(Gguf::open(&golden(name)?).expect("a golden file"))
}

fn prompts() -> Vec<Vec<u32>> {
    sequences(&golden("prompts.txt").expect("prompts.txt is in tests/data"))
}

fn scaled(adapters: &[(&str, f32)]) -> Option<Vec<Adapter>> {
    adapters.iter().map(|(name, scale)| Some(adapter(name)?.with_scale(*scale))).collect()
}

#[test]
fn adapters_match_the_references() {
    for case in CASES {
        let Some(adapters) = scaled(case.adapters) else { return };
        let path = golden(&format!("lora/{}.logits.npy", case.reference)).expect("the adapter's logits");
        let want = npy(&path).f32s();
        for kernels in simd::all() {
            let gguf = model(case.model).expect("the adapter's model");
            let engine = support::logits::engine(gguf, "f32", kernels, |options| {
                options.adapters.clone_from(&adapters);
            });
            let got = all_logits(&engine, &prompts());
            let far: Distance = distance(&got, &want, &prompts());
            let largest = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let what = format!("{}, {}: {far:?}, largest {largest}", case.reference, kernels.name);
            eprintln!("{what}");
            match case.bound {
                Bound::Floats => assert!(largest <= 1e-4, "{what}"),
                Bound::Int8(mean) => assert!(far.first <= 1e-3 && far.mean <= mean, "{what}"),
            }
        }
    }
}

#[test]
#[ignore = "thorough: scripts/test --all"]
fn adapters_on_devices_match_the_references() {
    CASES.iter().for_each(compare_on_devices);
}

#[test]
fn adapters_of_two_kinds_on_devices_match_the_references() {
    let with_table_and_head = &CASES[4];
    assert_eq!(with_table_and_head.adapters.len(), 2);
    compare_on_devices(with_table_and_head);
}

/// wgpu, and the CUDA kernels as a CPU build.
fn devices() -> impl Iterator<Item = Box<dyn Backend>> {
    wgpus().into_iter().take(1).chain(simt(1))
}

fn compare_on_devices(case: &Case) {
    let Some(adapters) = scaled(case.adapters) else { return };
    let path = golden(&format!("lora/{}.logits.npy", case.reference)).expect("the adapter's logits");
    let want = npy(&path).f32s();
    for backend in devices() {
        let device = backend.device();
        let options = EngineOptions {
            n_ctx: Some(192),
            outputs: 64,
            cache_type_k: "f32".parse().unwrap(),
            cache_type_v: "f32".parse().unwrap(),
            act_type: ActType::Trained,
            adapters: adapters.clone(),
            ..EngineOptions::default()
        };
        let gguf = model(case.model).expect("the adapter's model");
        let engine = Engine::on_backend(gguf, &options, backend, |_| ()).expect("kernels for it");
        let got = all_logits(&engine, &prompts());
        let far: Distance = distance(&got, &want, &prompts());
        let largest = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let what = format!("{}, {device}: {far:?}, largest {largest}", case.reference);
        eprintln!("{what}");
        match case.bound {
            Bound::Floats => assert!(largest <= 1e-4, "{what}"),
            Bound::Int8(mean) => assert!(far.first <= 1e-3 && far.mean <= mean, "{what}"),
        }
    }
}

/// Loaded adapters change nothing while no sequence uses them.
#[test]
fn unused_adapters_change_no_bit() {
    for name in ["llama/tiny-f16.gguf", "llama/tiny-q4_k.gguf"] {
        let Some(adapters) = scaled(&[("llama-a", 0.0), ("llama-b", 0.0)]) else { return };
        let [with, without] = [adapters, Vec::new()].map(|adapters| {
            let gguf = model(name).expect("the adapter's model");
            let engine = support::logits::engine(gguf, "f32", simd::best(), |options| {
                options.adapters = adapters;
            });
            assert_eq!(engine.program().without_adapters().stages.len(), engine.program().stages.len());
            all_logits(&engine, &prompts())
        });
        assert!(with.iter().zip(&without).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}");
    }
}

fn batch_engine(name: &str, adapters: Vec<Adapter>) -> Engine {
    batch_engine_on(backend("cpu", 2).expect("the CPU"), name, adapters)
}

fn batch_engine_on(backend: Box<dyn Backend>, name: &str, adapters: Vec<Adapter>) -> Engine {
    let options = EngineOptions {
        n_ctx: Some(192),
        threads: Some(2),
        n_seqs: 8,
        batch: 96,
        adapters,
        ..EngineOptions::default()
    };
    Engine::on_backend(model(name).expect("the model"), &options, backend, |_| ()).expect("it fits")
}

/// Runs requests, and returns the tokens with their log-probabilities per request.
fn run(batch: &mut Batch, requests: &[Request]) -> Vec<Vec<(u32, u32)>> {
    let ids: Vec<_> = requests.iter().map(|request| batch.add(request).expect("it fits")[0]).collect();
    let mut out = vec![Vec::new(); requests.len()];
    let mut open = requests.len();
    while open > 0 {
        for (id, event) in batch.step().expect("a step") {
            let at = ids.iter().position(|own| *own == id).expect("a known id");
            if let Some(token) = &event.token {
                let logprobs = token.logprobs.as_ref().expect("they were asked for");
                out[at].push((token.id, logprobs.picked.to_bits()));
            }
            if let Some(end) = event.end {
                assert_eq!(end, StopReason::Limit);
                open -= 1;
            }
        }
    }
    out
}

fn request(prompt: &[u32], adapters: &[(u32, f32)]) -> Request {
    let adapters = adapters.iter().map(|&(adapter, scale)| AdapterScale { adapter, scale }).collect();
    let mut options = greedy(12);
    options.logprobs = Some(0);
    Request { adapters: Some(adapters), ..Request::new(prompt.to_vec(), options) }
}

/// 8 sequences with 4 choices of adapters in one batch give what each gives alone, to the bit.
#[test]
fn sequences_with_different_adapters_share_steps() {
    let cases = [
        ("llama/tiny-f16.gguf", ["llama-a", "llama-b", "llama-c"]),
        ("llama/tiny-q4_k.gguf", ["llama-a", "llama-b", "llama-c"]),
        ("qwen3moe/tiny-f16.gguf", ["qwen3moe-a", "qwen3moe-t", "qwen3moe-a"]),
    ];
    for (name, adapters) in cases {
        let Some(adapters) = scaled(&adapters.map(|name| (name, 1.0))) else { return };
        let engine = batch_engine(name, adapters);
        assert_same_alone(&engine, name, |i| tokens(i as u32 % 5, 12 + i));
    }
}

/// The same on devices: as all steps have up to 8 rows, layers have the same sums.
#[test]
fn sequences_with_different_adapters_share_steps_on_devices() {
    for backend in devices() {
        let Some(adapters) = scaled(&["llama-a", "llama-b", "llama-c"].map(|name| (name, 1.0))) else {
            return;
        };
        let name = "llama/tiny-f16.gguf";
        assert_same_alone(&batch_engine_on(backend, name, adapters), name, |i| vec![20 + i as u32]);
    }
}

/// Runs 8 sequences with 4 choices of three adapters together and alone.
fn assert_same_alone(engine: &Engine, name: &str, prompt: impl Fn(usize) -> Vec<u32>) {
    let choices: [&[(u32, f32)]; 4] = [&[], &[(0, 1.0)], &[(1, 0.5), (0, -0.25)], &[(2, 1.0)]];
    let requests: Vec<Request> = (0..8).map(|i| request(&prompt(i), choices[i % choices.len()])).collect();
    let options = BatchOptions { prefix_cache: false, ..BatchOptions::default() };
    let together = run(&mut engine.batch(options.clone()).expect("a batch"), &requests);
    let mut batch = engine.batch(options).expect("a batch");
    for (i, (request, together)) in requests.iter().zip(&together).enumerate() {
        let alone = run(&mut batch, std::slice::from_ref(request)).remove(0);
        assert_eq!(alone.len(), 12);
        assert_eq!(alone, *together, "{name}, sequence {i}");
    }
    assert_ne!(together[0], together[4], "the prompts differ");
}

/// A prompt finds the pages of requests with the same adapters and scales only.
#[test]
fn the_prefix_cache_is_keyed_by_adapters() {
    let Some(adapters) = scaled(&[("llama-a", 0.0), ("llama-b", 0.0)]) else { return };
    let engine = batch_engine("llama/tiny-f16.gguf", adapters);
    let prompt: Vec<u32> = (0..130).map(|i| (i * 37 + 11) % 500).collect();
    let choices: [&[(u32, f32)]; 5] = [&[], &[(0, 1.0)], &[(0, 0.5)], &[(0, 1.0), (1, 1.0)], &[(1, 1.0)]];
    let fresh: Vec<_> = choices
        .iter()
        .map(|choice| {
            let mut batch = engine.batch(BatchOptions::default()).expect("a batch");
            run(&mut batch, &[request(&prompt, choice)])
        })
        .collect();
    let mut batch = engine.batch(BatchOptions::default()).expect("a batch");
    for round in 0..2 {
        for (choice, fresh) in choices.iter().zip(&fresh) {
            let before = batch.stats().prefix.hit_tokens;
            assert_eq!(run(&mut batch, &[request(&prompt, choice)]), *fresh, "{choice:?}");
            let found = batch.stats().prefix.hit_tokens - before;
            assert_eq!(found, if round == 0 { 0 } else { 128 }, "{choice:?}");
        }
    }
    // The order of a list and adapters of scale 0 do not matter.
    let before = batch.stats().prefix.hit_tokens;
    run(&mut batch, &[request(&prompt, &[(1, 1.0), (0, 1.0)]), request(&prompt, &[(1, 0.0), (0, 0.5)])]);
    assert_eq!(batch.stats().prefix.hit_tokens - before, 256);
}

/// Saved sessions and pages are those of their adapters.
#[test]
fn saved_pages_belong_to_their_adapters() {
    let open = |scale: f32| Some(batch_engine("llama/tiny-f16.gguf", scaled(&[("llama-a", scale)])?));
    let (Some(with), Some(without)) = (open(1.0), open(0.0)) else { return };
    let tokens: Vec<u32> = (0..70).collect();
    let saved = |mut session: Session| {
        session.prefill(&tokens).expect("room");
        let mut out = Vec::new();
        session.save(&mut out).expect("memory");
        out
    };
    let (of_adapter, plain) = (saved(with.session().expect("room")), saved(without.session().expect("room")));
    let restored = with.restore(&mut &of_adapter[..]).expect("the same adapters");
    assert_eq!(restored.tokens(), tokens);
    assert!(without.restore(&mut &plain[..]).is_ok());
    for (engine, file) in [(&without, &of_adapter), (&with, &plain)] {
        let err = engine.restore(&mut &file[..]).expect_err("other adapters").to_string();
        assert!(err.contains("adapters"), "{err}");
    }
    // An engine without adapters has the sessions of one that does not use its own.
    let none = batch_engine("llama/tiny-f16.gguf", Vec::new());
    assert!(none.restore(&mut &plain[..]).is_ok());
    assert!(none.restore(&mut &of_adapter[..]).is_err());
    drop(restored);
    let salt = Arc::from("");
    let used = with.salt_with(&with.default_adapters(), &salt);
    let mut batch = with.batch(BatchOptions::default()).expect("a batch");
    assert_eq!(batch.restore(&mut &of_adapter[..], &used).expect("the same adapters"), tokens);
    assert!(batch.restore(&mut &of_adapter[..], &salt).is_err());
    let mut out = Vec::new();
    assert_eq!(batch.save(&tokens, &used, &mut out).expect("memory"), 64);
    assert_eq!(batch.save(&tokens, &salt, &mut Vec::new()).expect("memory"), 0);
}

#[test]
fn faults_of_adapters_are_named() {
    const A: &str = "blk.0.attn_q.weight.lora_a";
    const B: &str = "blk.0.attn_q.weight.lora_b";
    let gguf_of = |keys: &[(&str, &str)], tensors: &[(&str, &[usize], f32)]| {
        let tensors: Vec<_> =
            tensors.iter().map(|(name, dims, value)| (*name, *dims, std::slice::from_ref(value))).collect();
        Gguf::from_bytes(file(keys, &tensors).into()).expect("a valid file")
    };
    let llama = keys("llama");
    let refused = |keys: &[(&str, &str)], tensors: &[(&str, &[usize], f32)], want: &[&str]| {
        let options = |adapter| EngineOptions { adapters: vec![adapter], ..EngineOptions::default() };
        let loaded = Adapter::new("mine.gguf", gguf_of(keys, tensors));
        let err = match loaded {
            Err(err) => err,
            Ok(adapter) => {
                let Some(gguf) = model("llama/tiny-f16.gguf") else { return };
                sterna::engine::program(&gguf, &options(adapter)).expect_err("not of this model")
            }
        };
        let err = err.to_string();
        assert!(err.starts_with("adapter mine.gguf: "), "{err}");
        want.iter().for_each(|want| assert!(err.contains(want), "{err} without {want}"));
    };
    let pair = [(A, &[2, 256][..], 0.5), (B, &[256, 2][..], 0.5)];
    refused(&[("general.architecture", "llama")], &pair, &["general.type", "adapter"]);
    refused(&[llama[0], ("adapter.type", "ia3"), llama[2]], &pair, &["adapter.type", "ia3"]);
    refused(&[llama[0], llama[1], ("general.architecture", "qwen3")], &pair, &["llama", "qwen3"]);
    refused(&llama, &pair[..1], &[B]);
    refused(&llama, &pair[1..], &[A]);
    refused(&llama, &[], &["at least one pair"]);
    refused(&llama, &[(A, &[2, 128], 0.5), pair[1]], &[A, "[2, 256]", "[2, 128]"]);
    refused(&llama, &[(A, &[3, 256], 0.5), pair[1]], &[A, "[2, 256]", "[3, 256]"]);
    refused(&llama, &[pair[0], (B, &[255, 2], 0.5)], &[B, "[256, 2]", "[255, 2]"]);
    refused(&llama, &[pair[0], (B, &[256, 2], f32::NAN)], &[B, "finite", "NaN"]);
    refused(&llama, &[pair[0], pair[1], ("blk.0.attn_q.weight.lora_magnitude", &[256], 1.0)], &["DoRA"]);
    let other =
        [("blk.9.attn_q.weight.lora_a", &[2, 256][..], 0.5), ("blk.9.attn_q.weight.lora_b", &[256, 2], 0.5)];
    refused(&llama, &other, &["blk.9.attn_q.weight", "another model"]);
    let norm =
        [("output_norm.weight.lora_a", &[1, 256][..], 0.5), ("output_norm.weight.lora_b", &[1, 1], 0.5)];
    refused(&llama, &norm, &["output_norm.weight", "multiplies"]);
    // Norms that mergekit copies are left out.
    let Some(gguf) = model("llama/tiny-f16.gguf") else { return };
    let with_norm = [pair[0], pair[1], ("blk.0.attn_norm.weight", &[256], 1.0)];
    let adapter = Adapter::new("mine.gguf", gguf_of(&llama, &with_norm)).expect("a valid adapter");
    let options = EngineOptions { adapters: vec![adapter], ..EngineOptions::default() };
    let program = sterna::engine::program(&gguf, &options).expect("a pair of this model");
    let text = program.to_string();
    assert!(text.contains("+ s[mine.gguf] * 0.5 * adapter 0 blk.0.attn_q.weight.lora_b"), "{text}");
}

/// Pairs of queries, keys and values of a model that has one tensor for them give what one pair of that
/// tensor gives: a matrix of stacked rows, and one of blocks.
#[test]
fn pairs_of_parts_of_a_fused_tensor() {
    const DIM: usize = 32;
    let outputs = [32, 16, 16];
    let value = |i: usize, seed: usize| ((i * 37 + seed * 11) % 29) as f32 / 29.0 - 0.5;
    let a = |part: usize| (0..2 * DIM).map(|i| value(i, part)).collect::<Vec<_>>();
    let b = |part: usize| (0..2 * outputs[part]).map(|i| value(i, 7 + part)).collect::<Vec<_>>();
    let name = |which: &str, half: &str| format!("blk.1.attn_{which}.weight.lora_{half}");
    let mut apart = Vec::new();
    let (mut stacked, mut blocks) = (Vec::new(), Vec::new());
    for (part, which) in ["q", "k", "v"].into_iter().enumerate() {
        apart.push((name(which, "a"), vec![2, DIM], a(part)));
        apart.push((name(which, "b"), vec![outputs[part], 2], b(part)));
        stacked.extend(a(part));
        for row in b(part).chunks(2) {
            let mut all = [0.0; 6];
            all[2 * part..][..2].copy_from_slice(row);
            blocks.extend(all);
        }
    }
    let fused = vec![(name("qkv", "a"), vec![6, DIM], stacked), (name("qkv", "b"), vec![64, 6], blocks)];
    let path = support::root().join("tests/data/golden/tiny/phi3.gguf");
    let logits = |tensors: &[(String, Vec<usize>, Vec<f32>)], scale: f32| {
        let tensors: Vec<_> =
            tensors.iter().map(|(name, dims, values)| (&name[..], &dims[..], &values[..])).collect();
        let gguf = Gguf::from_bytes(file(&keys("phi3"), &tensors).into()).expect("a valid file");
        let adapter = Adapter::new("mine.gguf", gguf).expect("a valid adapter").with_scale(scale);
        let gguf = Gguf::open(&path).expect("it is in tests/data");
        let engine = support::logits::engine(gguf, "f32", simd::best(), |options| {
            options.n_ctx = Some(32);
            options.adapters = vec![adapter];
        });
        all_logits(&engine, &[(0..20).collect()])
    };
    // Of one alpha, factors are by rank: 2 in parts, 6 in the whole.
    let (of_parts, of_whole, plain) = (logits(&apart, 1.0), logits(&fused, 3.0), logits(&apart, 0.0));
    let far = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(far(&of_parts, &of_whole) < 1e-4 && far(&of_parts, &plain) > 0.1);
}

/// Plans of devices count the matrices of adapters, and the buffers of their products.
#[test]
fn plans_of_devices_count_adapters() {
    let Some(adapters) = scaled(&[("llama-a", 1.0)]) else { return };
    let gguf = model("llama/tiny-f16.gguf").expect("the adapter's model");
    let pairs: usize = adapters[0].gguf().tensors().iter().map(|info| 4 * info.n_elems()).sum();
    for backend in devices() {
        let plan = |adapters: &[Adapter]| {
            let options = EngineOptions { adapters: adapters.to_vec(), ..EngineOptions::default() };
            sterna::engine::plan(&gguf, &options, &*backend).expect("kernels for it")
        };
        let (with, without) = (plan(&adapters), plan(&[]));
        let more = (with.weights_bytes - without.weights_bytes) as usize;
        assert!((pairs..2 * pairs).contains(&more), "{}: {more} for {pairs}", backend.device());
        assert!(with.bufs_bytes > without.bufs_bytes && with.kv_bytes == without.kv_bytes);
    }
}
