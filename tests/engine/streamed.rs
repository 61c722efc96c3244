//! Models that fit on a card of 16 GB, and models that do not: the plan and the allocations of the CUDA
//! backend, against the shapes.

#![cfg(feature = "cuda")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sterna::backend::GpuLayers;
use sterna::backend::cuda::{Cuda, Streaming};
use sterna::backend::{Backend, DeviceMemory, Plan};
use sterna::engine::{self, EngineOptions};
use sterna::gguf::Gguf;
use sterna::synth::{Preset, Spec};

use super::hollow::hollow_of;
use super::kv_memory::{Counting, weights};

/// Memory of the card, including that of a display and of the driver.
const CARD: u64 = 16_000_000_000;

fn of(n_layers: usize, dim: usize, ffn_dim: usize, [n_heads, n_kv_heads]: [usize; 2], ty: &str) -> Spec {
    let preset = Preset::by_name("bitnet-8b").unwrap().spec(None, None, 1).unwrap();
    let name = format!("{n_layers} layers of {dim} {ty}");
    let ty = ggml_types::by_name(ty).unwrap();
    Spec { name, n_layers, dim, ffn_dim, n_heads, n_kv_heads, ty, ..preset }
}

/// Number of weights of a layer's matrices.
fn layer(spec: &Spec) -> u64 {
    let Spec { dim, ffn_dim, n_heads, n_kv_heads, head_dim, .. } = *spec;
    let (q, kv) = (n_heads * head_dim, n_kv_heads * head_dim);
    (2 * q * dim + 2 * kv * dim + 3 * ffn_dim * dim) as u64
}

/// Returns the plan, and the bytes that were allocated on the card and on the host.
fn load(gguf: &Gguf, options: &EngineOptions, streaming: Option<Streaming>) -> (Plan, u64, u64) {
    let card = Counting::card(CARD);
    let (used, locked) = (Arc::clone(&card.used), Arc::clone(&card.locked));
    let mut cuda = Cuda::on(Box::new(card)).streamed(streaming);
    let plan = engine::plan(gguf, options, &cuda).unwrap();
    let program = engine::program(gguf, options).unwrap();
    let ids: Vec<_> = weights(gguf, &program, options).iter().map(|w| cuda.upload(w).unwrap()).collect();
    cuda.compile(&program, &ids).unwrap();
    (plan, used.load(Ordering::Relaxed), locked.load(Ordering::Relaxed))
}

fn sum(plan: &Plan) -> u64 {
    plan.weights_bytes + plan.kv_bytes + plan.bufs_bytes
}

/// An 8B model with ternary weights is fully resident; a 70B model and an 8B model in 16 bits stream some
/// layers, and no more than necessary.
#[test]
fn layers_that_do_not_fit_16_gigabytes_are_streamed() {
    let dir = tempfile::tempdir().unwrap();
    let auto = Some(Streaming::new(GpuLayers::Auto, 2));
    let options = EngineOptions { n_ctx: Some(8192), ..EngineOptions::default() };
    for (spec, bits, streamed) in [
        (of(32, 4096, 14_336, [32, 8], "i2_s"), 2, false),
        (of(80, 8192, 28_672, [64, 8], "i2_s"), 2, true),
        (of(32, 4096, 14_336, [32, 8], "f16"), 16, true),
    ] {
        let gguf = hollow_of(&spec, dir.path());
        let (plan, used, locked) = load(&gguf, &options, auto.clone());
        let layer = layer(&spec) * bits / 8;
        // The scale and padding after the codes of each I2_S tensor exist only in the file.
        assert!(used <= sum(&plan) && sum(&plan) - used <= 32 * 7 * 80, "{}: {used} {plan:?}", spec.name);
        assert!(used <= CARD - CARD / 32);
        assert_eq!((plan.host_bytes, plan.host_bytes % layer), (locked, 0), "{}", spec.name);
        assert_eq!(locked > 0, streamed, "{}", spec.name);
        if streamed {
            assert!(engine::plan(&gguf, &options, &Cuda::on(Box::new(Counting::card(CARD)))).is_err());
            let one_more = Streaming::new(GpuLayers::Count(spec.n_layers - (locked / layer) as usize + 1), 2);
            let card = Cuda::on(Box::new(Counting::card(u64::MAX))).streamed(Some(one_more));
            let more = engine::plan(&gguf, &options, &card).unwrap();
            let driver_bytes = card.memory(&engine::program(&gguf, &options).unwrap()).unwrap();
            let driver_bytes: u64 = driver_bytes.iter().map(DeviceMemory::overhead_bytes).sum();
            let more_bytes = more.weights_bytes - plan.weights_bytes;
            assert!((layer..=layer + 32 * 7).contains(&more_bytes), "{more_bytes}, a layer is {layer}");
            assert!(sum(&more) + driver_bytes > CARD - CARD / 32, "{}: another layer would fit", spec.name);
        }
    }
}
