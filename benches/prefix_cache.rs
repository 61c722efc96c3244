//! Time to restore 100 saved pages into a full prefix cache, which evicts 100 pages for them.
//!
//! `cargo bench --bench prefix_cache`. The model is small, so that 100,000 pages take 230 MB. Restoring a
//! page takes the same time in a cache of any size.
#![allow(missing_docs)] // The macros generate public modules without docs.

use std::ops::ControlFlow;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ggml_types::by_name;
use sterna::engine::{Batch, BatchOptions, Engine, EngineOptions, PAGE};
use sterna::gguf::Gguf;
use sterna::synth::{Preset, Spec, Synth};

/// Pages of the saved text.
const SAVED: usize = 100;

/// An engine whose KV cache has `pages` pages of 2304 bytes each.
fn engine(pages: usize) -> Engine {
    let f16 = by_name("f16").expect("a type of the registry");
    let spec = Spec {
        n_layers: 1,
        dim: 32,
        ffn_dim: 32,
        n_heads: 1,
        n_kv_heads: 1,
        head_dim: 32,
        n_vocab: 512,
        n_ctx: SAVED * PAGE,
        ty: f16,
        head_ty: f16,
        ..Preset::by_name("llama-3.2-1b").and_then(|preset| preset.spec(None, None, 1)).expect("a preset")
    };
    let mut file = Vec::new();
    Synth::new(&spec)
        .and_then(|synth| synth.write(&mut file, |_| ControlFlow::Continue(())))
        .expect("a model");
    let options = EngineOptions {
        device: "cpu".parse().unwrap(),
        n_ctx: Some(SAVED * PAGE),
        kv_positions: Some(pages * PAGE),
        cache_type_k: "q4_0".parse().unwrap(),
        cache_type_v: "q4_0".parse().unwrap(),
        ..EngineOptions::default()
    };
    let gguf = Gguf::from_bytes(file.into()).expect("a file that was just written");
    Engine::from_gguf(gguf, &options, |_| ()).expect("an engine")
}

/// A batch whose prefix cache uses all pages. Each restored text has its own salt.
struct Full {
    batch: Batch,
    saved: Vec<u8>,
    salts: usize,
}

impl Full {
    fn new(pages: usize) -> Self {
        let engine = engine(pages);
        let mut session = engine.session().expect("a slot");
        let text: Vec<u32> = (0..(SAVED * PAGE) as u32).map(|i| i * 7 % 256).collect();
        session.prefill(&text).expect("a prompt that fits");
        let mut saved = Vec::new();
        session.save(&mut saved).expect("a session that is saved");
        drop(session);
        let batch = engine.batch(BatchOptions::default()).expect("a batch");
        let mut full = Self { batch, saved, salts: 0 };
        (0..pages / SAVED).for_each(|_| full.restore());
        assert_eq!(full.batch.stats().free_pages, 0, "the prefix cache is full");
        full
    }

    fn restore(&mut self) {
        self.salts += 1;
        let salt = self.salts.to_string().into();
        self.batch.restore(&mut self.saved.as_slice(), &salt).expect("pages that were saved");
    }
}

fn evict(c: &mut Criterion) {
    let mut group = c.benchmark_group("restore 100 pages");
    for pages in [1_000, 10_000, 100_000] {
        let mut full = Full::new(pages);
        group.bench_function(BenchmarkId::new("full cache", pages), |b| b.iter(|| full.restore()));
    }
    group.finish();
}

criterion_group! {
    name = prefix_cache;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = evict
}
criterion_main!(prefix_cache);
