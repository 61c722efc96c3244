//! Runs allocate nothing, neither decode steps nor batches, on any thread. A compiled program has allocated
//! what was planned. A model that is read and uploaded is never in memory as a whole.
//!
//! This program has no test harness, since the threads of the harness would allocate, too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use ggml_types::HostTensor;
use sterna::backend::cpu::Cpu;
use sterna::backend::cpu::stream::Streaming;
use sterna::backend::{self, Backend, BackendError, DeviceOptions, Resident, WeightBytes, WeightRows};
use sterna::engine::{Engine, EngineOptions};
use sterna::gguf::{Gguf, OpenOptions, Source};
use sterna::program::{Row, Sampling, Step, WeightDecl};
use sterna::synth::{Preset, Synth};
use support::case::model::{Model, SMALL};
use support::case::{backends, limits, shuffled_pages, windowed_limits, windowed_pages};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Bytes in use.
static BYTES: AtomicUsize = AtomicUsize::new(0);
/// The most bytes in use so far.
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Bytes allowed for the description of a program, the handles of its weights and a thread's first steps.
const ALLOWED_BYTES: usize = 64 << 10;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        let bytes = BYTES.fetch_add(layout.size(), Ordering::SeqCst) + layout.size();
        PEAK.fetch_max(bytes, Ordering::SeqCst);
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::SeqCst);
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let sampling =
        [Some(Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Sampling::GREEDY })];
    for model in [
        SMALL,
        Model { weights: "q6_k", ffn_dim: 512, ..SMALL },
        Model { weights: "q4_0", kv: "f32", ..SMALL },
        Model { kv: "turboquant", ..SMALL },
        Model { kv: "tq3_0", ..SMALL },
        Model { kv: "tq3_0", head_dim: 64, ..SMALL },
        Model { kv: "q4_0", ..SMALL },
    ] {
        let windowed = ["turboquant", "tq3_0"].contains(&model.kv);
        let limits = if windowed { windowed_limits(96, 1, 6) } else { limits(96, 1, 6) };
        let (case, _) = model.case("a small model", limits);
        let pages = if windowed { windowed_pages(1, 6) } else { shuffled_pages(1, 6) };
        let row = |pos: u32, logits| Row { token: pos % 300, pos, seq: 0, logits };
        let prompt: Vec<Row> = (0..96).map(|pos| row(pos, pos == 95)).collect();
        // A step through wgpu allocates an encoder, and the driver allocates, too.
        for mut backend in backends().into_iter().filter(|backend| backend.name() != "wgpu") {
            if !case.has_kernels(&*backend) {
                continue;
            }
            let plan = backend.plan(&case.p).expect("a plan");
            let planned = (plan.kv_bytes + plan.bufs_bytes) as usize;
            let before = BYTES.load(Ordering::SeqCst);
            let running = case.on(&mut *backend);
            let taken = BYTES.load(Ordering::SeqCst) - before;
            // GPU memory is not counted.
            let of_host = running.backend.name() == "cpu";
            assert!(
                !of_host || (planned..planned + ALLOWED_BYTES).contains(&taken),
                "{} weights on {}: {planned} bytes planned, {taken} taken",
                model.weights,
                running.backend.device()
            );
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            let batch = Step { rows: &prompt, pages: &pages, sampling: &sampling, changes: &[] };
            running.backend.run(running.exec, &batch).expect("a run");
            // Two pages are filled. The CPU, which is fast, continues on the next one.
            let end = if of_host { 300 } else { 200 };
            for pos in 96..end {
                let step = Step { rows: &[row(pos, true)], pages: &pages, sampling: &sampling, changes: &[] };
                running.backend.run(running.exec, &step).expect("a run");
                running.backend.tokens(running.exec, 0, &mut [0]).expect("a token");
            }
            let fed = |pos| Row { token: Row::PICKED, ..row(pos, true) };
            for pos in end..end + 50 {
                let step = Step { rows: &[fed(pos)], pages: &pages, sampling: &sampling, changes: &[] };
                running.backend.run(running.exec, &step).expect("a run");
                running.backend.picked(running.exec, 0, 1).expect("a token");
            }
            let allocations = ALLOCATIONS.load(Ordering::SeqCst) - before;
            assert_eq!(allocations, 0, "{} weights on {}", model.weights, running.backend.device());
        }
    }
    println!("a run allocates nothing: ok");
    read_in_every_step();
    read_and_uploaded();
}

/// A weight in memory that is read like one in a file.
struct Loaded<'a>(&'a HostTensor, &'a WeightDecl);

impl WeightRows for Loaded<'_> {
    fn decl(&self) -> &WeightDecl {
        self.1
    }

    fn read(&self, rows: Range<usize>) -> Result<HostTensor, BackendError> {
        let row_bytes = self.0.bytes.len() / self.0.rows;
        let bytes = self.0.bytes.slice(rows.start * row_bytes..rows.end * row_bytes);
        Ok(HostTensor { rows: rows.len(), bytes, ..self.0.clone() })
    }

    fn reader(&self) -> Option<Arc<dyn WeightBytes>> {
        Some(Arc::new(LoadedBytes(self.0.bytes.clone())))
    }
}

struct LoadedBytes(Bytes);

impl WeightBytes for LoadedBytes {
    fn read_at(&self, at: usize, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.0[at..at + into.len()]);
        Ok(())
    }
}

/// Weights that are read in every step: neither a step nor the thread that reads allocates anything. Loading
/// a model from a file takes the planned amount of memory.
fn read_in_every_step() {
    let (case, _) = Model { weights: "q8_0", ..SMALL }.case("a small model", limits(8, 1, 6));
    let pages = shuffled_pages(1, 6);
    let streaming = Streaming { resident: Resident::Nothing, piece_bytes: 4096, ..Streaming::default() };
    let mut cpu = Cpu::new(2).expect("threads").streamed(streaming);
    cpu.prepare(&case.p).expect("a plan");
    let weights = case.weights.iter().zip(&case.p.weights);
    let ids: Vec<_> =
        weights.map(|(w, decl)| cpu.upload_rows(&Loaded(w, decl)).expect("an upload")).collect();
    let exec = cpu.compile(&case.p, &ids).expect("a program that compiles");
    let mut run = |pos| {
        let rows = [Row { token: pos % 300, pos, seq: 0, logits: true }];
        let sampling = [Some(Sampling::GREEDY)];
        cpu.run(exec, &Step { rows: &rows, pages: &pages, sampling: &sampling, changes: &[] })
            .expect("a run");
    };
    run(0);
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    (1..100).for_each(run);
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst) - before, 0, "allocations with weights that are read");

    let mut spec = Preset::by_name("bitnet-2b-4t").unwrap().spec(None, None, 1).unwrap();
    spec.n_layers = 3;
    spec.n_vocab = 4000;
    let synth = Synth::new(&spec).unwrap();
    let zeros = ZeroWeights { file_bytes: synth.file_bytes(), head: synth.descriptions().unwrap().into() };
    let gguf = Gguf::from_source(Arc::new(zeros), OpenOptions::default()).expect("a model");
    let options = EngineOptions {
        threads: Some(2),
        device: DeviceOptions {
            resident_layers: Some(Resident::Count(1)),
            stream_slots: Some(3),
            .."cpu".parse().unwrap()
        },
        n_ctx: Some(256),
        batch: 8,
        ..Default::default()
    };
    let before = BYTES.load(Ordering::SeqCst);
    let engine = Engine::from_gguf(gguf, &options, |_| ()).expect("a model");
    let taken = BYTES.load(Ordering::SeqCst) - before;
    let plan = engine.plan();
    let planned = (plan.weights_bytes + plan.kv_bytes + plan.bufs_bytes) as usize;
    // More for the names of weights and the index of the vocabulary.
    let most = planned + (1 << 20);
    assert!((planned..most).contains(&taken), "{planned} bytes planned, {taken} taken");
    assert!(engine.gguf().file_bytes().sum::<u64>() > plan.weights_bytes + (20 << 20), "{plan:?}");
    println!("weights that are read in every step: {taken} bytes in memory, {planned} planned: ok");
}

/// A file with a header, and zeros instead of weights.
struct ZeroWeights {
    head: Bytes,
    file_bytes: u64,
}

impl Source for ZeroWeights {
    fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        into.fill(0);
        let start = (at as usize).min(self.head.len());
        let n = (self.head.len() - start).min(into.len());
        into[..n].copy_from_slice(&self.head[start..start + n]);
        Ok(())
    }
}

/// The embedding of BitNet b1.58 2B-4T has 657 MB as F16. Its layers are alike, so two are enough.
fn read_and_uploaded() {
    /// For weights and for the header, most of which is a vocabulary of 128,000 tokens.
    const MAX_BYTES: usize = 32 << 20;
    if backend::open("wgpu", 1).is_err() {
        println!("memory while a model is uploaded: skipped, wgpu has no device");
        return;
    }
    let mut spec = Preset::by_name("bitnet-2b-4t").unwrap().spec(None, None, 1).unwrap();
    spec.n_layers = 2;
    let synth = Synth::new(&spec).unwrap();
    let file_bytes = synth.file_bytes();
    let zeros = ZeroWeights { file_bytes, head: synth.descriptions().unwrap().into() };
    for head_type in ["keep", "q6_k"] {
        let options = EngineOptions {
            device: "wgpu".parse().unwrap(),
            head_type: head_type.parse().unwrap(),
            n_ctx: Some(64),
            ..Default::default()
        };
        let head = zeros.head.clone();
        let before = BYTES.load(Ordering::SeqCst);
        PEAK.store(before, Ordering::SeqCst);
        let source = Arc::new(ZeroWeights { head, ..zeros });
        let engine = Engine::from_source(source, &options, |_| ()).expect("a model");
        let most = PEAK.load(Ordering::SeqCst) - before;
        let weights = engine.plan().weights_bytes;
        assert!(weights > 650_000_000, "{weights}");
        assert!(most < MAX_BYTES, "{most} bytes were in use while {weights} bytes of weights were loaded");
        println!("{weights} bytes of weights uploaded, head {head_type}, with {most} bytes of memory: ok");
    }
}
