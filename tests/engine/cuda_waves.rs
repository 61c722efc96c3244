//! Fill of the waves of every launch of a token and of steps of 16 to 64 rows, for published model shapes on
//! cards that are not installed: number of blocks compared with the occupancy, from registers and shared
//! memory.

#![cfg(feature = "cuda")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use ggml_types::by_name;
use serde_json::Value;
use sterna::backend::cuda::driver::cards::{CARDS, SMALL, Spec as Card};
use sterna::backend::cuda::driver::{Address, Driver, Kernel, Launch, Limits, Mailboxes, Piece, Recording};
use sterna::backend::cuda::{Cuda, occupancy};
use sterna::backend::{Backend, BackendError};
use sterna::engine::{self, EngineOptions};
use sterna::gguf::Gguf;
use sterna::model::{Hyper, Model, Options};
use sterna::program::{Cost, Step};
use sterna::synth::{Preset, Spec};
use support::case::{rows, shuffled_pages};

use super::hollow::hollow_of;

/// Cards that exist.
fn cards() -> impl Iterator<Item = &'static Card> {
    CARDS.iter().filter(|card| **card != SMALL)
}

/// Two layers of each shape: BitNet 2B-4T, Llama 3 8B, Llama 3.2 1B; and one of Qwen3-30B-A3B.
fn models() -> Vec<Spec> {
    let of = |preset| Preset::by_name(preset).unwrap().spec(None, None, 1).unwrap();
    let small = Spec {
        name: "BitNet in the size of Llama 3.2 1B".into(),
        dim: 2048,
        ffn_dim: 8192,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 64,
        ..of("bitnet-8b")
    };
    let mixture = Spec { n_layers: 1, ty: by_name("q8_0").unwrap(), ..of("qwen3-30b-a3b") };
    let all = [of("bitnet-2b-4t"), of("bitnet-8b"), small].map(|spec| Spec { n_layers: 2, ..spec });
    all.into_iter().chain([mixture]).collect()
}

/// Minimum fill of a wave.
const FULL: f64 = 0.85;

/// Kernels with emptier waves, by the start of their name, and the reason.
const REASONS: [(&str, &str); 11] = [
    ("append__", "one block per row, KV head and side, and a step has few rows"),
    ("embed__", "one thread per element of a row, and a step has few rows"),
    ("quantize__", "one block per row, which normalises and quantises it for all others"),
    ("attend__", "launched for the longest context; blocks without positions end at once"),
    ("heads", "four heads of a row per block, and a step has few rows"),
    ("attn_in__q8_0__mma", "a tile has all columns, so that float sums have one order"),
    ("proj_add__q8_0__mma", "a tile has all columns, so that float sums have one order"),
    ("experts__f32__tiles", "the router: few outputs for few rows"),
    ("route", "one warp per row, and a step has few rows"),
    ("mix", "a short second wave: a block adds up eight products of 256 columns"),
    ("sample", "sixteen logits per thread; fewer would cost more atomics than they save"),
];

/// Records launches without memory and without running anything.
struct Dry {
    limits: Limits,
    used: u64,
    kernels: Arc<Mutex<Vec<String>>>,
    recorded: Arc<Mutex<Vec<Vec<Launch>>>>,
}

impl Driver for Dry {
    fn name(&self) -> &'static str {
        "dry"
    }

    fn device(&self) -> String {
        "a dry card".into()
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }

    fn alloc(&mut self, bytes: u64) -> Result<Address, BackendError> {
        self.used += bytes.next_multiple_of(256);
        Ok((1 << 40) + self.used)
    }

    fn upload_constant(&mut self, _: &str, _: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }

    fn write(&mut self, _: Address, _: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }

    fn read(&mut self, _: Address, _: &mut [u8]) -> Result<(), BackendError> {
        unreachable!("a dry card has no memory")
    }

    fn connect(&mut self, _: &mut dyn Driver) -> Result<(), BackendError> {
        Ok(())
    }

    fn receive(&mut self, _: &mut dyn Driver, _: &[Piece]) -> Result<(), BackendError> {
        unreachable!("a dry card runs nothing")
    }

    fn mailboxes(&mut self, _: usize) -> Result<Mailboxes, BackendError> {
        Ok(Mailboxes { at: 1 << 39, id: 0 })
    }

    fn mark(&mut self, _: Mailboxes, _: usize) -> Result<(), BackendError> {
        Ok(())
    }

    fn collect(&mut self, _: Mailboxes, _: usize) -> Result<u32, BackendError> {
        unreachable!("a dry card runs nothing")
    }

    fn kernel(&self, name: &str) -> Option<Kernel> {
        let mut kernels = self.kernels.lock().unwrap();
        let at = kernels.iter().position(|kernel| kernel == name).unwrap_or_else(|| {
            kernels.push(name.into());
            kernels.len() - 1
        });
        Some(Kernel(at as u32))
    }

    fn launch(&mut self, _: &Launch) -> Result<(), BackendError> {
        unreachable!("a dry card runs nothing")
    }

    fn record(&mut self, launches: Vec<Launch>) -> Result<Recording, BackendError> {
        self.recorded.lock().unwrap().push(launches);
        Ok(Recording(0))
    }

    fn time(&mut self, _: &[Vec<Launch>]) -> Result<Vec<u64>, BackendError> {
        unreachable!("a dry card runs nothing")
    }

    fn replay(&mut self, _: Recording) -> Result<(), BackendError> {
        unreachable!("a dry card runs nothing")
    }
}

/// Graphs of a model for steps of up to `rows` rows over a cache type, first the one for single rows:
/// launches with the names of their kernels. Its weights are uploaded once.
fn recordings(gguf: &Gguf, steps: &[(&str, usize)], limits: Limits) -> Vec<Vec<Vec<(String, Launch)>>> {
    let (kernels, recorded) = (Arc::default(), Arc::default());
    let card = Dry { limits, used: 0, kernels: Arc::clone(&kernels), recorded: Arc::clone(&recorded) };
    let mut cuda = Cuda::on(Box::new(card));
    let mut ids = Vec::new();
    let graphs_of = |&(codec, rows): &(&str, usize)| {
        let options = EngineOptions {
            n_ctx: Some(4096),
            batch: rows,
            cache_type_k: codec.parse().unwrap(),
            cache_type_v: codec.parse().unwrap(),
            ..EngineOptions::default()
        };
        let program = engine::program(gguf, &options).unwrap();
        let hyper = Hyper::read(gguf.metadata(), program.weights[0].rows).unwrap();
        let (k, v) = (program.kvs[0].k, program.kvs[0].v);
        let build = Options { window: options.exact(), ..Options::new(program.limits, k, v) };
        let model = Model::build(gguf, hyper, &build).unwrap();
        if ids.is_empty() {
            ids.extend(model.weights.iter().map(|w| cuda.upload(&w.read().unwrap()).unwrap()));
        }
        cuda.compile(&program, &ids).unwrap();
        let kernels = kernels.lock().unwrap();
        let named = |launch: Launch| (kernels[launch.kernel.0 as usize].clone(), launch);
        let graphs = std::mem::take(&mut *recorded.lock().unwrap());
        graphs.into_iter().map(|launches| launches.into_iter().map(named).collect()).collect()
    };
    steps.iter().map(graphs_of).collect()
}

/// All different launches of some graphs.
fn different(graphs: Vec<Vec<(String, Launch)>>) -> Vec<(String, Launch)> {
    let mut found: Vec<(String, Launch)> = Vec::new();
    for (name, launch) in graphs.into_iter().flatten() {
        let same = |(known, other): &(String, Launch)| {
            (known, other.grid, other.shared_bytes) == (&name, launch.grid, launch.shared_bytes)
        };
        if !found.iter().any(same) {
            found.push((name, launch));
        }
    }
    found
}

/// Registers of every kernel on an architecture, as allocated by the compiler.
fn registers(arch: &str) -> BTreeMap<String, u32> {
    let budgets: Value = serde_json::from_str(include_str!("../../benches/kernel-budgets.json")).unwrap();
    let kernels = budgets["kernels"][arch].as_object().unwrap_or_else(|| panic!("no budgets of {arch}"));
    kernels.iter().map(|(name, of)| (name.clone(), of["registers"].as_u64().unwrap() as u32)).collect()
}

/// Fraction of a launch's waves that is filled with blocks. For less than one wave, the fraction of the
/// rounds in which every multiprocessor gets one block.
fn fill(card: &Card, launch: &Launch, registers: u32) -> f64 {
    let Launch { threads, shared_bytes, .. } = *launch;
    let resident = occupancy::blocks(card, threads, registers, shared_bytes);
    assert!(resident > 0, "a block does not fit the card");
    let blocks: u32 = launch.grid.iter().product();
    let places = resident * card.multiprocessors;
    let wave = if blocks > places { places } else { card.multiprocessors };
    f64::from(blocks) / f64::from(blocks.div_ceil(wave) * wave)
}

/// Attention of a layer of GLM-4.7-Flash and of the same layer without latent vectors of queries: launches of
/// a step of one row, from the products to the output.
#[test]
fn latent_attention_takes_few_launches() {
    let dir = tempfile::tempdir().unwrap();
    let of = Preset::by_name("glm-4.7-flash").unwrap().spec(None, None, 1).unwrap();
    let spec = Spec { n_layers: 1, n_vocab: 1024, ty: by_name("q8_0").unwrap(), ..of };
    let gguf = hollow_of(&spec, dir.path());
    let names = |rows: usize| {
        let recorded = recordings(&gguf, &[("f16", rows)], CARDS[0].limits());
        let all = recorded[0][0].iter().map(|(name, _)| name.clone());
        all.skip(1).take_while(|name| !name.starts_with("ffn_in")).collect::<Vec<_>>()
    };
    let of_one = [
        "logits__q8_0",
        "logits__q8_0",
        "latent_in",
        "head_proj__q8_0",
        "attend__f16__latent",
        "head_proj__q8_0",
        "proj_add__q8_0",
    ];
    assert_eq!(names(1), of_one);
    // The stages' bytes, by hand: matrices of 34 bytes per 32 weights, and 576 elements of two bytes for the
    // row's position and for each that it reads.
    let options = EngineOptions { n_ctx: Some(4096), ..EngineOptions::default() };
    let program = engine::program(&gguf, &options).unwrap();
    let (rows, pages) = (rows(0, 127..128), shuffled_pages(1, 8));
    let step = Step { rows: &rows, pages: &pages, sampling: &[], changes: &[] };
    let of_attention = ["0.latent_in", "0.attend", "0.head_proj", "0.attn_out"];
    let stages = program.stages.iter().filter(|(label, _)| of_attention.contains(&label.as_str()));
    let costs: Vec<Cost> = stages.map(|(_, stage)| program.stage_cost(stage, &step)).collect();
    let (queries, keys) = (768 * 2048 + 20 * 256 * 768, 576 * 2048);
    let (k_b, v_b, output) = (20 * 192 * 512, 20 * 256 * 512, 2048 * 20 * 256);
    let weights = (queries + keys + k_b + v_b + output) / 32 * 34;
    assert_eq!((costs.len(), costs.iter().map(|cost| cost.weight_bytes).sum::<u64>()), (4, weights));
    assert_eq!(costs.iter().map(|cost| cost.kv_bytes).sum::<u64>(), 576 * 2 * (1 + 128));
}

#[test]
fn waves_are_full_or_have_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let (mut poor, mut used) = (Vec::new(), [false; REASONS.len()]);
    for model in models() {
        let gguf = hollow_of(&model, dir.path());
        for card in cards() {
            let (major, minor) = card.compute;
            let registers = registers(&format!("sm_{major}{minor}"));
            let steps = ["f16", "turboquant"].map(|codec| [1, 16, 64].map(|rows| (codec, rows))).concat();
            for (&(_, rows), graphs) in steps.iter().zip(recordings(&gguf, &steps, card.limits())) {
                for (kernel, launch) in different(graphs) {
                    let registers =
                        *registers.get(&kernel).unwrap_or_else(|| panic!("no budget of {kernel}"));
                    let full = fill(card, &launch, registers);
                    if full >= FULL {
                        continue;
                    }
                    match REASONS.iter().position(|(name, _)| kernel.starts_with(name)) {
                        Some(reason) => used[reason] = true,
                        None => poor.push(format!(
                            "{} on an {}, {rows} rows: {kernel}, {:?} blocks with {} bytes: {:.0} %",
                            model.name,
                            card.name,
                            launch.grid,
                            launch.shared_bytes,
                            100.0 * full
                        )),
                    }
                }
            }
        }
    }
    assert!(poor.is_empty(), "{}", poor.join("\n"));
    assert!(used.iter().all(|used| *used), "an unused reason: {used:?}");
}

/// BitNet 2B-4T has 153, and this model has 2 of its 30 layers. Quantised caches need no further launch.
#[test]
fn each_stage_of_a_token_is_one_launch() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = hollow_of(&models()[0], dir.path());
    for codec in ["f16", "turboquant", "turboquant-4"] {
        for card in cards() {
            let token: Vec<String> = recordings(&gguf, &[(codec, 1)], card.limits())
                .swap_remove(0)
                .swap_remove(0)
                .into_iter()
                .map(|(name, _)| name)
                .collect();
            assert_eq!(token.len(), 2 * 5 + 3, "{codec} on an {}: {token:?}", card.name);
        }
    }
}
