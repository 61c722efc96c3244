//! Wall time of the kernels of linear layers, run manually: `cargo bench --bench kernels`.
//!
//! `read` is a plain memory read with the same threads, as a reference for the throughput of matrix-vector
//! products. `matmul` counts multiply-adds. Shapes are those of BitNet 2B-4T. The weights exceed the caches.
#![allow(missing_docs)] // The macros generate public modules without docs.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use ggml_types::{HostTensor, by_name};
use sterna::backend::cpu::linear::{Acts, CpuWeight, WeightProduct, WorkspaceSize, matmul};
use sterna::backend::cpu::pool::Pool;
use sterna::backend::cpu::simd::{self, Kernels};
use sterna::backend::physical_cores;
use sterna::program::ActQuant;

/// Bytes of weights read per measurement.
const WEIGHTS: usize = 256 << 20;

/// A weight whose bytes are a valid, small number in every type.
fn weight(ty: &str, rows: usize, cols: usize) -> CpuWeight {
    let ty = by_name(ty).expect("a known type");
    let bytes = Bytes::from(vec![0x15; ty.byte_len(rows, cols).expect("a shape that the type can hold")]);
    CpuWeight::new(&HostTensor { name: String::new(), ty, rows, cols, bytes })
}

fn kind(ty: &str) -> ActQuant {
    if ["i2_s", "tq2_0"].contains(&ty) { ActQuant::I8PerToken } else { ActQuant::None }
}

/// One linear layer with everything that it needs.
struct Layer {
    k: &'static Kernels,
    pool: Pool,
    w: CpuWeight,
    acts: Acts,
    out: Vec<f32>,
}

impl Layer {
    fn new(k: &'static Kernels, threads: usize, ty: &str, outputs: usize, cols: usize, rows: usize) -> Self {
        let (pool, w) = (Pool::new(threads).expect("threads"), weight(ty, outputs, cols));
        let mut acts = Acts::new(&WorkspaceSize::default().with(k, w.ty, cols, kind(ty), rows), threads);
        acts.load(k, &pool, kind(ty), rows, cols, |row, x| {
            x.iter_mut().enumerate().for_each(|(i, x)| *x = ((i + row) as f32 * 0.618).sin());
        });
        Self { k, pool, w, acts, out: vec![0.0; rows * outputs] }
    }

    fn run(&mut self) {
        let Self { k, pool, w, acts, out } = self;
        matmul(k, pool, acts, [WeightProduct { w, scale: 1.0, bias: None, out: black_box(out), add: false }]);
    }
}

fn matvec(c: &mut Criterion) {
    let threads = physical_cores();
    let mut group = c.benchmark_group("matvec");
    group.sample_size(20).throughput(Throughput::Bytes(WEIGHTS as u64));
    let words = vec![1_u64; WEIGHTS / 8];
    let pool = Pool::new(threads).expect("threads");
    group.bench_function("read", |b| {
        b.iter(|| {
            pool.run(16 * threads, |i, _| {
                let part = &words[words.len() / (16 * threads) * i..][..words.len() / (16 * threads)];
                black_box(part.iter().fold(0, |sum, word| sum | word));
            });
        });
    });
    drop(words);
    for k in simd::all().into_iter().filter(|k| k.name != "scalar") {
        for ty in ["i2_s", "tq2_0", "f16", "q8_0", "q6_k"] {
            let cols = 2560;
            let row_bytes = by_name(ty).expect("a known type").row_bytes(cols).expect("whole blocks");
            let outputs = WEIGHTS / row_bytes;
            let mut layer = Layer::new(k, threads, ty, outputs, cols, 1);
            group.throughput(Throughput::Bytes((outputs * row_bytes) as u64));
            group.bench_function(BenchmarkId::new(ty, k.name), |b| b.iter(|| layer.run()));
        }
    }
    group.finish();
}

fn products(c: &mut Criterion) {
    let mut group = c.benchmark_group("matmul");
    group.sample_size(20);
    for k in simd::all().into_iter().filter(|k| k.name != "scalar") {
        for (ty, outputs, cols) in [("i2_s", 2560, 2560), ("i2_s", 2560, 6912), ("f16", 1024, 2560)] {
            for rows in [2, 8, 32, 512] {
                let mut layer = Layer::new(k, 1, ty, outputs, cols, rows);
                group.throughput(Throughput::Elements((rows * outputs * cols) as u64));
                let id = BenchmarkId::new(format!("{ty} {outputs}x{cols}, {rows} rows"), k.name);
                group.bench_function(id, |b| b.iter(|| layer.run()));
            }
        }
    }
    group.finish();
}

fn rounding(c: &mut Criterion) {
    let mut group = c.benchmark_group("quantise");
    group.throughput(Throughput::Elements(6912));
    let x: Vec<f32> = (0..6912).map(|i| (i as f32 * 0.618).sin()).collect();
    let mut q = vec![0; simd::padded(x.len())];
    for k in simd::all() {
        group.bench_function(k.name, |b| b.iter(|| (k.quantise)(black_box(&x), &mut q)));
    }
    group.finish();
}

criterion_group!(benches, matvec, products, rounding);
criterion_main!(benches);
