//! The sums of `sterna plan` against the allocations of backends, and the options that make a model fit.
#![cfg(feature = "cuda")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sterna::backend::cuda::Cuda;
use sterna::backend::cuda::driver::cards::Spec as Card;
use sterna::backend::{Backend, BackendError, CardOnPaper, DeviceMemory, DeviceOptions, MemoryKind, Opened};
use sterna::engine::fit::{self, Fit, Room};
use sterna::engine::{self, EngineOptions, Error};
use sterna::gguf::{Gguf, Header, OpenOptions};
use sterna::synth::{Preset, Spec, Synth};

use super::kv_memory::{Counting, weights};

const GIB: u64 = 1 << 30;

/// A model of this shape, from its header alone.
fn header_of(spec: &Spec) -> Gguf {
    let synth = Synth::new(spec).unwrap();
    let file_bytes = synth.file_bytes();
    let first = synth.descriptions().unwrap().into();
    Gguf::from_headers(&[Header { first, file_bytes }], OpenOptions::default()).unwrap()
}

fn preset(name: &str, ty: Option<&str>, head_ty: Option<&str>) -> Spec {
    Preset::by_name(name).unwrap().spec(ty, head_ty, 1).unwrap()
}

fn rtx_5080(memory_bytes: u64) -> Box<dyn Backend> {
    on_paper(&CardOnPaper { card: Some("rtx 5080".into()), memory_bytes: Some(memory_bytes) }).unwrap()
}

fn on_paper(card: &CardOnPaper) -> Opened {
    "cuda".parse::<DeviceOptions>()?.on_paper(card)
}

fn one(mut devices: Vec<DeviceMemory>) -> DeviceMemory {
    assert_eq!(devices.len(), 1);
    devices.remove(0)
}

/// Bytes that uploading the weights, and that compiling, allocates on a card of the same geometry.
fn allocated(gguf: &Gguf, options: &EngineOptions, memory_bytes: u64) -> Result<[u64; 2], BackendError> {
    let card = Counting::like(Card::find("rtx 5080").unwrap(), memory_bytes);
    let used = Arc::clone(&card.used);
    let program = engine::program(gguf, options).unwrap();
    let mut cuda = Cuda::on(Box::new(card));
    let all = weights(gguf, &program, options);
    let ids = all.iter().map(|w| cuda.upload(w)).collect::<Result<Vec<_>, _>>()?;
    let of_weights = used.load(Ordering::Relaxed);
    cuda.compile(&program, &ids)?;
    Ok([of_weights, used.load(Ordering::Relaxed) - of_weights])
}

/// The plan for a card on paper matches the allocations of the counting driver, to the byte.
#[test]
fn plans_on_paper_match_driver_allocations() {
    let small = |name: &str, ty: Option<&str>, head_ty: Option<&str>| Spec {
        n_layers: 2,
        n_vocab: 4096 + 512,
        ..preset(name, ty, head_ty)
    };
    // Types unchanged, padded, in planes, and unpacked; tied and untied heads; norms of heads; windows.
    let models = [
        small("tiny", Some("i2_s"), Some("f16")),
        small("bitnet-2b-4t", Some("tq2_0"), Some("q6_k")),
        small("falcon3-1b", Some("tq1_0"), Some("q8_0")),
        small("gpt2", Some("f16"), Some("f32")),
        small("qwen2.5-0.5b", Some("q8_0"), Some("bf16")),
        small("qwen3-0.6b", Some("q4_0"), Some("q4_0")),
        small("gemma-3-1b", Some("f16"), Some("q8_0")),
        small("tiny-moe", Some("q8_0"), Some("q6_k")),
    ];
    let mut n = 0;
    for spec in &models {
        let gguf = header_of(spec);
        for (k, v) in [
            ("f16", "f16"),
            ("q8_0", "q8_0"),
            ("q8_0", "q4_0"),
            ("turboquant", "turboquant"),
            ("turboquant-t", "turboquant-t"),
            ("tq3_0", "tq3_0"),
        ] {
            for (act, n_ctx, batch, n_seqs) in
                [("trained", 64, 1, 1), ("i8-block", 700, 512, 1), ("trained", 512, 96, 3)]
            {
                let act_type = act.parse().unwrap();
                let usual =
                    EngineOptions { n_ctx: Some(n_ctx), batch, n_seqs, act_type, ..EngineOptions::default() };
                let options = usual.with_cache([k, v].map(|name| name.parse().unwrap()));
                let planned = match engine::memory(&gguf, &options, &*rtx_5080(16 * GIB)) {
                    Ok(devices) => one(devices),
                    Err(err) => panic!("{}, {k} and {v}: {err}", spec.name),
                };
                let taken = allocated(&gguf, &options, 16 * GIB).unwrap();
                let of = |kind| planned.bytes_of(kind);
                let want = [of(MemoryKind::Weights), of(MemoryKind::Kv) + of(MemoryKind::Buffers)];
                assert_eq!(taken, want, "{}, {k} and {v}, {n_ctx} positions in steps of {batch}", spec.name);
                n += 1;
            }
        }
    }
    assert!(n > 60, "{n} plans");
}

/// A re-encoded head is planned with its new type.
#[test]
fn plan_includes_the_type_of_the_head() {
    let gguf = header_of(&Spec { n_layers: 1, ..preset("bitnet-2b-4t", None, None) });
    let with = |head_type: &str| {
        let options = EngineOptions { head_type: head_type.parse().unwrap(), ..EngineOptions::default() };
        one(engine::memory(&gguf, &options, &*rtx_5080(16 * GIB)).unwrap())
    };
    let bytes = |device: &DeviceMemory, name: &str| {
        device.parts.iter().find(|part| part.name == name).map(|part| part.bytes)
    };
    let (vocab, dim) = (128_256, 2560);
    assert_eq!(bytes(&with("keep"), "embedding and output head (f16)"), Some(2 * vocab * dim));
    let q8_0 = with("q8_0");
    assert_eq!(bytes(&q8_0, "embedding (f16)"), Some(2 * vocab * dim));
    assert_eq!(bytes(&q8_0, "output head (q8_0)"), Some(vocab * dim / 32 * 34));
}

/// Llama 2 7B with ternary layers: the formula, the plan, and the allocations on a card of 16 GiB agree at
/// the longest context that fits. (`--verify-7b` of the packing's specification.)
#[test]
fn seven_billion_ternary_weights_fit_16_gibibytes() {
    let spec = Spec {
        n_layers: 32,
        dim: 4096,
        ffn_dim: 11_008,
        n_heads: 32,
        n_kv_heads: 32,
        head_dim: 128,
        n_vocab: 32_000,
        n_ctx: 131_072,
        tied: false,
        ..preset("llama3-8b-1.58", None, None)
    };
    let gguf = header_of(&spec);
    let card = rtx_5080(16 * GIB);
    let linear: u64 = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11_008);
    assert_eq!(linear, 6_476_005_376);
    // The mean of a page's keys takes 128 bytes, 2 of its scale and 14 of padding.
    for (codec, vec_bytes, mean) in [("f16", 256, 0), ("q8_0", 136, 0), ("turboquant", 50, 144)] {
        let codecs = vec![[codec.parse().unwrap(); 2]];
        let wish = Fit { most_ctx: 131_072, least_ctx: 64, step: 64, codecs, margin_bytes: None };
        let usual = EngineOptions::default();
        let choice = fit::fit(&gguf, &usual, &*card, &wish).unwrap().expect("a context that fits");
        let options = usual.with_choice(&choice);
        let planned = one(engine::memory(&gguf, &options, &*card).unwrap());
        // Two bits per ternary weight; f16 for embedding and head; f32 for norms.
        let norms = 4 * 4096 * (2 * 32 + 1);
        assert_eq!(planned.bytes_of(MemoryKind::Weights), linear / 4 + 2 * 2 * 32_000 * 4096 + norms);
        let pages = choice.n_ctx as u64 / 64 * 32 * 32 * (64 * 2 * vec_bytes + mean);
        let exact = planned.bytes_of(MemoryKind::Kv) - pages;
        assert_eq!(exact > 0, codec == "turboquant");
        // Exactly as much memory is enough, and one byte less is not.
        let need = planned.bytes();
        assert_eq!(allocated(&gguf, &options, need).unwrap().iter().sum::<u64>(), need, "{codec}");
        assert!(matches!(allocated(&gguf, &options, need - 1), Err(BackendError::OutOfMemory { .. })));
        let room = Room::on(&planned, None);
        assert!(need + planned.overhead_bytes() + room.margin_bytes <= 16 * GIB && room.fits() == Some(true));
        // One more page does not fit, or exceeds the trained context.
        let next = EngineOptions { n_ctx: Some(choice.n_ctx + 64), ..options };
        let room = Room::on(&one(engine::memory(&gguf, &next, &*card).unwrap()), None);
        assert!(choice.n_ctx == 131_072 || room.fits() == Some(false), "{codec}: {}", choice.n_ctx);
        // 15.2 GiB minus 2.1 GB of weights: half a MiB per position in f16.
        let at_least = [("f16", 22_000), ("q8_0", 40_000), ("turboquant", 100_000)];
        let at_least = at_least.iter().find(|(name, _)| *name == codec).unwrap().1;
        assert!(choice.n_ctx > at_least, "{codec}: {} positions", choice.n_ctx);
    }
}

/// A ternary model of 70 billion weights does not fit in 16 GiB with any context, and the plan has the
/// missing bytes.
#[test]
fn seventy_billion_ternary_weights_do_not_fit() {
    let spec = Spec {
        n_layers: 80,
        dim: 8192,
        ffn_dim: 28_672,
        n_heads: 64,
        n_kv_heads: 8,
        head_dim: 128,
        ..preset("llama3-8b-1.58", None, None)
    };
    let gguf = header_of(&spec);
    let card = rtx_5080(16 * GIB);
    let options = EngineOptions { n_ctx: Some(4096), ..EngineOptions::default() };
    let planned = one(engine::memory(&gguf, &options, &*card).unwrap());
    let room = Room::on(&planned, None);
    assert_eq!(room.fits(), Some(false));
    // 17.1 GB of ternary weights, 4.2 GB of embedding and head.
    assert!((19 * GIB..21 * GIB).contains(&planned.bytes_of(MemoryKind::Weights)));
    assert_eq!(room.short_bytes(), planned.bytes() + planned.overhead_bytes() + room.margin_bytes - 16 * GIB);
    let codecs = fit::CODECS.map(|codec| [codec; 2]).into();
    let wish = Fit { most_ctx: 8192, least_ctx: 64, step: 64, codecs, margin_bytes: Some(0) };
    assert_eq!(fit::fit(&gguf, &options, &*card, &wish).unwrap(), None);
    assert!(matches!(engine::plan(&gguf, &options, &*card), Err(Error::DoesNotFit { .. })));
}

/// On every backend the parts add up to the plan; none is empty, and names are unique.
#[test]
fn parts_add_up_to_the_plan() {
    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    let gguf = Gguf::open(&path).unwrap();
    let mut backends = support::case::backends();
    backends.push(rtx_5080(16 * GIB));
    for backend in backends {
        for codec in ["f16", "q8_0", "turboquant"] {
            let options = EngineOptions { n_ctx: Some(500), ..EngineOptions::default() }
                .with_cache([codec; 2].map(|name| name.parse().unwrap()));
            let program = engine::program(&gguf, &options).unwrap();
            let (plan, device) = (backend.plan(&program).unwrap(), one(backend.memory(&program).unwrap()));
            let sums = [plan.weights_bytes, plan.kv_bytes, plan.bufs_bytes];
            assert_eq!(MemoryKind::ALL.map(|kind| device.bytes_of(kind)), sums, "{}", device.device);
            assert_eq!(device.bytes(), sums.iter().sum::<u64>());
            assert!(device.parts.len() > 8 && device.parts.iter().all(|part| part.bytes > 0), "{device:?}");
            let has_exact = device.parts.iter().any(|part| part.name.starts_with("exact pages"));
            assert_eq!(has_exact, codec == "turboquant", "{}", device.device);
            for part in &device.parts {
                let named = device.parts.iter().filter(|other| other.name == part.name);
                assert_eq!(named.count(), 1, "{}: {}", device.device, part.name);
            }
        }
    }
}

/// A card on paper has the kernels of the backend, and runs nothing.
#[test]
fn cards_on_paper_only_plan() {
    let mut card = on_paper(&CardOnPaper::default()).unwrap();
    assert!(card.device().contains("RTX 5080"), "{}", card.device());
    let spec = Spec { n_layers: 1, head_dim: 1024, ..preset("qwen3-0.6b", Some("q8_0"), None) };
    let refused = engine::memory(&header_of(&spec), &EngineOptions::default(), &*card).unwrap_err();
    assert!(refused.to_string().contains("attend with heads of 1024"), "{refused}");
    let gguf = header_of(&preset("tiny", None, None));
    let program = engine::program(&gguf, &EngineOptions::default()).unwrap();
    assert!(card.plan(&program).is_ok());
    let weight = &weights(&gguf, &program, &EngineOptions::default())[0];
    let refused = card.upload(weight).unwrap_err();
    assert!(refused.to_string().contains("only planned for"), "{refused}");
    for name in ["auto", "cpu"] {
        let device: DeviceOptions = name.parse().unwrap();
        let message = device.on_paper(&CardOnPaper::default()).map(drop).unwrap_err().to_string();
        assert!(message.contains("cannot plan for a card"), "{message}");
    }
    let unknown =
        on_paper(&CardOnPaper { card: Some("voodoo 2".into()), ..CardOnPaper::default() }).map(drop);
    let message = unknown.unwrap_err().to_string();
    assert!(message.contains("unknown GPU `voodoo 2`") && message.contains("RTX 4090"), "{message}");
}
