//! Memory of long contexts: the plan, and the allocations of the CUDA backend, against the formula.

#![cfg(feature = "cuda")]

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ggml_types::HostTensor;
use sterna::backend::cpu::Cpu;
use sterna::backend::cuda::Cuda;
use sterna::backend::cuda::driver::cards::Spec as Card;
use sterna::backend::cuda::driver::{
    Address, Driver, Kernel, Launch, Limits, Mailboxes, Piece, Recording, Ring,
};
use sterna::backend::cuda::split::Split;
use sterna::backend::{Backend, BackendError, Plan};
use sterna::engine::{self, EngineOptions};
use sterna::gguf::Gguf;
use sterna::model::{Hyper, Model, Options};
use sterna::program::{PAGE, Program};
use sterna::synth::Preset;

use super::hollow::hollow_of;

const POSITIONS: usize = 131_072;

/// A card that counts allocated bytes and forwards to another driver, if any; without one it stores and runs
/// nothing.
pub struct Counting {
    on: Option<Box<dyn Driver>>,
    bytes: u64,
    pub used: Arc<AtomicU64>,
    /// Bytes of page-locked host memory.
    pub locked: Arc<AtomicU64>,
    limits: Limits,
    /// Number of launches of each graph, in order.
    recorded: Arc<Mutex<Vec<usize>>>,
}

impl Counting {
    pub fn card(bytes: u64) -> Self {
        let limits = Limits {
            multiprocessors: 48,
            shared_bytes: 99 << 10,
            prefetch_bytes: 0,
            streams_octets: false,
            streams_prompts: false,
        };
        let (used, locked, recorded) = Default::default();
        Self { on: None, bytes, used, locked, limits, recorded }
    }

    /// Creates a card with the geometry of an existing one.
    pub fn like(card: &Card, bytes: u64) -> Self {
        Self { limits: card.limits(), ..Self::card(bytes) }
    }
}

impl Driver for Counting {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn device(&self) -> String {
        format!("a card of {} bytes that counts", self.bytes)
    }

    fn limits(&self) -> Limits {
        match &self.on {
            Some(on) => on.limits(),
            None => self.limits,
        }
    }

    fn free_bytes(&self) -> Option<u64> {
        Some(self.bytes - self.used.load(Ordering::Relaxed))
    }

    fn alloc(&mut self, bytes: u64) -> Result<Address, BackendError> {
        let used = self.used.load(Ordering::Relaxed);
        if used + bytes > self.bytes {
            return Err(BackendError::OutOfMemory {
                backend: "counting",
                need: bytes,
                free: self.bytes - used,
            });
        }
        self.used.store(used + bytes, Ordering::Relaxed);
        match &mut self.on {
            Some(on) => on.alloc(bytes),
            None => Ok((1 << 40) + used.next_multiple_of(256)),
        }
    }

    fn upload_constant(&mut self, name: &str, bytes: &[u8]) -> Result<(), BackendError> {
        self.on.as_mut().map_or(Ok(()), |on| on.upload_constant(name, bytes))
    }

    fn write(&mut self, to: Address, bytes: &[u8]) -> Result<(), BackendError> {
        self.on.as_mut().map_or(Ok(()), |on| on.write(to, bytes))
    }

    fn read(&mut self, from: Address, out: &mut [u8]) -> Result<(), BackendError> {
        self.on.as_mut().expect("a driver with memory").read(from, out)
    }

    fn connect(&mut self, _: &mut dyn Driver) -> Result<(), BackendError> {
        Ok(())
    }

    fn receive(&mut self, _: &mut dyn Driver, _: &[Piece]) -> Result<(), BackendError> {
        unreachable!("one card does not receive")
    }

    fn mailboxes(&mut self, n: usize) -> Result<Mailboxes, BackendError> {
        match &mut self.on {
            Some(on) => on.mailboxes(n),
            None => Ok(Mailboxes { at: 1 << 39, id: 0 }),
        }
    }

    fn mark(&mut self, mailboxes: Mailboxes, i: usize) -> Result<(), BackendError> {
        self.on.as_mut().map_or(Ok(()), |on| on.mark(mailboxes, i))
    }

    fn collect(&mut self, mailboxes: Mailboxes, i: usize) -> Result<u32, BackendError> {
        self.on.as_mut().expect("a driver that runs kernels").collect(mailboxes, i)
    }

    fn kernel(&self, name: &str) -> Option<Kernel> {
        self.on.as_ref().map_or(Some(Kernel(0)), |on| on.kernel(name))
    }

    fn launch(&mut self, launch: &Launch) -> Result<(), BackendError> {
        self.on.as_mut().map_or(Ok(()), |on| on.launch(launch))
    }

    fn record(&mut self, launches: Vec<Launch>) -> Result<Recording, BackendError> {
        self.recorded.lock().unwrap().push(launches.len());
        self.on.as_mut().map_or(Ok(Recording(0)), |on| on.record(launches))
    }

    fn time(&mut self, groups: &[Vec<Launch>]) -> Result<Vec<u64>, BackendError> {
        self.on.as_mut().map_or(Ok(Vec::new()), |on| on.time(groups))
    }

    fn replay(&mut self, recording: Recording) -> Result<(), BackendError> {
        self.on.as_mut().map_or(Ok(()), |on| on.replay(recording))
    }

    fn ring(&mut self, bytes: u64, _: usize) -> Result<Ring, BackendError> {
        assert!(self.on.is_none(), "streaming is not forwarded to another driver");
        self.locked.fetch_add(bytes, Ordering::Relaxed);
        Ok(Ring(0))
    }

    fn fill(&mut self, _: Ring, at: u64, bytes: &[u8]) -> Result<(), BackendError> {
        assert!(at + bytes.len() as u64 <= self.locked.load(Ordering::Relaxed));
        Ok(())
    }

    fn copy_ahead(&mut self, _: Ring, _: usize, _: Address, _: Range<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    fn release(&mut self, _: Ring, _: usize) -> Result<(), BackendError> {
        Ok(())
    }
}

/// Writes the preset's model without weights.
fn hollow(preset: &str, dir: &Path) -> Gguf {
    hollow_of(&Preset::by_name(preset).unwrap().spec(None, None, 1).unwrap(), dir)
}

fn options(codec: &str) -> EngineOptions {
    EngineOptions {
        n_ctx: Some(POSITIONS),
        cache_type_k: codec.parse().unwrap(),
        cache_type_v: codec.parse().unwrap(),
        ..EngineOptions::default()
    }
}

/// The weights of a file's program.
pub fn weights(gguf: &Gguf, program: &Program, options: &EngineOptions) -> Vec<HostTensor> {
    let hyper = Hyper::read(gguf.metadata(), program.weights[0].rows).unwrap();
    let (k, v) = (program.kvs[0].k, program.kvs[0].v);
    let options = Options { window: options.exact(), ..Options::new(program.limits, k, v) };
    let weights = Model::build(gguf, hyper, &options).unwrap().weights;
    weights.iter().map(|w| w.read().unwrap()).collect()
}

/// Uploads and compiles; returns the plan, and the bytes of the weights and of everything else.
fn load(gguf: &Gguf, codec: &str, card: Counting) -> Result<(Plan, u64, u64), BackendError> {
    let (used, options) = (Arc::clone(&card.used), options(codec));
    let program = engine::program(gguf, &options).unwrap();
    let all = weights(gguf, &program, &options);
    let mut cuda = Cuda::on(Box::new(card));
    let plan = cuda.plan(&program)?;
    let ids = all.iter().map(|w| cuda.upload(w)).collect::<Result<Vec<_>, _>>()?;
    let weights = used.load(Ordering::Relaxed);
    cuda.compile(&program, &ids)?;
    Ok((plan, weights, used.load(Ordering::Relaxed) - weights))
}

/// Bytes of keys and values, and, if there are exact pages, of those of one sequence and of the rows of one
/// step and of the mean of each page's keys: 128 bytes, 2 of its scale and 14 of padding.
fn formula(n_layers: u64, n_kv_heads: u64, vec_bytes: u64, exact_pages: u64) -> u64 {
    let positions = POSITIONS as u64;
    let means = if exact_pages > 0 { positions / PAGE as u64 * 144 } else { 0 };
    let exact = exact_pages * 2 * PAGE as u64 * 128 * 2;
    n_layers * n_kv_heads * (positions * 2 * vec_bytes + means + exact)
}

#[test]
fn bitnet_2b_with_131072_positions_matches_the_formula() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = hollow("bitnet-2b-4t", dir.path());
    let cpu = Cpu::new(1).unwrap();
    let planned = |codec: &str, backend: &dyn Backend| {
        backend.plan(&engine::program(&gguf, &options(codec)).unwrap()).unwrap().kv_bytes
    };
    let all = u64::MAX;
    // 4 pages of the sequence and 8 of 512 rows.
    for (codec, want) in [
        ("turboquant", formula(30, 5, 50, 12)),
        ("turboquant-4", formula(30, 5, 66, 12)),
        ("f16", formula(30, 5, 256, 0)),
    ] {
        assert_eq!(planned(codec, &cpu), want, "{codec}");
        let (plan, weights, rest) = load(&gguf, codec, Counting::card(all)).unwrap();
        assert_eq!(plan.kv_bytes, want, "{codec}");
        assert_eq!((weights, rest), (plan.weights_bytes, plan.kv_bytes + plan.bufs_bytes), "{codec}");
    }
    assert!(planned("turboquant", &cpu) <= 2_100_000_000);
    assert!((10_050_000_000..10_100_000_000).contains(&planned("f16", &cpu)));
}

#[test]
fn eight_billion_weights_and_131072_positions_fit_16_gigabytes() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = hollow("bitnet-8b", dir.path());
    let card = || Counting::card(16_000_000_000);
    let (plan, weights, rest) = load(&gguf, "turboquant", card()).unwrap();
    assert_eq!(plan.kv_bytes, formula(32, 8, 50, 12));
    assert_eq!((weights, rest), (plan.weights_bytes, plan.kv_bytes + plan.bufs_bytes));
    // This leaves memory for a display.
    assert!(weights + rest < 8_000_000_000, "{weights} {rest}");
    let refused = load(&gguf, "f16", card()).unwrap_err();
    assert!(matches!(refused, BackendError::OutOfMemory { .. }), "{refused}");
    // The planner gives the same error before anything is uploaded.
    let cuda = Cuda::on(Box::new(card()));
    assert!(engine::plan(&gguf, &options("turboquant"), &cuda).is_ok());
    let refused = engine::plan(&gguf, &options("f16"), &cuda).unwrap_err();
    assert!(matches!(refused, sterna::Error::DoesNotFit { .. }), "{refused}");
}

/// Layers over two cards: each allocates the planned bytes, and a card that is too small is an error before
/// anything is uploaded, even if the other one has free memory.
#[test]
fn models_too_large_for_one_card_fit_on_two() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = hollow("bitnet-8b", dir.path());
    let options = options("f16");
    let over = |cards: [Counting; 2], shares: &[f64]| {
        let drivers = cards.map(|card| Box::new(card) as Box<dyn Driver>).into();
        Split::on(drivers, Some(shares.to_vec())).unwrap()
    };
    let gigabytes = |n: u64| n * 1_000_000_000;
    for (second, shares, fits) in [(16, [1.0, 1.0], true), (64, [1.0, 9.0], true), (64, [9.0, 1.0], false)] {
        let cards = [16, second].map(|n| Counting::card(gigabytes(n)));
        let used = cards.each_ref().map(|card| Arc::clone(&card.used));
        let mut split = over(cards, &shares);
        let planned = engine::plan(&gguf, &options, &split);
        assert_eq!(used.each_ref().map(|used| used.load(Ordering::Relaxed)), [0, 0]);
        if !fits {
            assert!(matches!(planned, Err(sterna::Error::DoesNotFit { .. })), "{planned:?}");
            continue;
        }
        let (program, plan) = (engine::program(&gguf, &options).unwrap(), planned.unwrap());
        let ids: Vec<_> =
            weights(&gguf, &program, &options).iter().map(|w| split.upload(w).unwrap()).collect();
        split.compile(&program, &ids).unwrap();
        let allocated: u64 = used.iter().map(|used| used.load(Ordering::Relaxed)).sum();
        assert_eq!(allocated, plan.weights_bytes + plan.kv_bytes + plan.bufs_bytes);
        assert!(used.iter().all(|used| used.load(Ordering::Relaxed) > gigabytes(1)));
    }
}

/// A token is one graph: five launches per layer, six if `append` stores blocks of keys and values, and three
/// more. Attention over `turboquant` stores them itself.
#[test]
fn tokens_need_the_expected_number_of_launches() {
    let dir = tempfile::tempdir().unwrap();
    let gguf = hollow("bitnet-2b-4t", dir.path());
    for (codec, per_layer) in [("f16", 5), ("turboquant", 5), ("q8_0", 6)] {
        let card = Counting::card(u64::MAX);
        let recorded = Arc::clone(&card.recorded);
        load(&gguf, codec, card).unwrap();
        assert_eq!(recorded.lock().unwrap()[0], 30 * per_layer + 3, "{codec}");
    }
}

/// The same count on a driver that allocates memory and runs kernels.
#[cfg(feature = "simt")]
#[test]
fn allocations_with_running_kernels_match_the_plan() {
    use sterna::backend::cuda::driver::simt::Simt;
    use sterna::engine::Engine;

    let path = support::golden("bitnet/tiny-i2_s.gguf").expect("tiny-i2_s.gguf is in tests/data");
    for (codec, batch) in [("turboquant", 64), ("turboquant-4", 200), ("tq3_0", 100), ("f16", 64)] {
        let card = Counting { on: Some(Box::new(Simt::new(2, 1))), ..Counting::card(1 << 32) };
        let used = Arc::clone(&card.used);
        let options = EngineOptions { n_ctx: Some(384), batch, ..options(codec) };
        let gguf = Gguf::open(&path).unwrap();
        let engine = Engine::on_backend(gguf, &options, Box::new(Cuda::on(Box::new(card))), |_| ()).unwrap();
        let plan = engine.plan();
        assert_eq!(plan.kv_bytes, engine.program().kv_bytes(), "{codec}");
        let all = plan.weights_bytes + plan.kv_bytes + plan.bufs_bytes;
        assert_eq!(used.load(Ordering::Relaxed), all, "{codec}");
        let tokens: Vec<u32> = (0..200).collect();
        engine.session().unwrap().logits(&tokens).unwrap();
        assert_eq!(used.load(Ordering::Relaxed), all, "{codec}: a step allocates nothing");
    }
}
