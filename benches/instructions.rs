//! Instructions that callgrind counts for the paths whose speed CI watches. The counts stand in
//! `benches/instructions.json`; `scripts/instructions.py` compares and updates them.
//!
//! Callgrind knows no AVX-512, so the kernels counted here are those that a machine with AVX2 picks.

use std::hint::black_box;

use gungraun::{library_benchmark, library_benchmark_group, main};
use sterna::program::sampling::{Sampling, Scratch, pick};

/// Logits that look like a language model's: a few large ones over a wide floor.
fn logits(s: Sampling) -> (Sampling, Vec<f32>, Scratch) {
    let n_vocab = 128_256;
    let logits = (0..n_vocab).map(|i| (i as f32 * 0.618).sin() * 4.0 + if i % 4001 == 0 { 8.0 } else { 0.0 });
    (s, logits.collect(), Scratch::new(n_vocab))
}

const DEFAULTS: Sampling =
    Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Sampling::GREEDY };

#[library_benchmark(setup = logits)]
#[bench::greedy(Sampling::GREEDY)]
#[bench::defaults(DEFAULTS)]
#[bench::nucleus(Sampling { top_k: 0, ..DEFAULTS })]
fn sample((s, logits, mut scratch): (Sampling, Vec<f32>, Scratch)) -> (u32, Scratch) {
    (black_box(pick(&logits, &s, &mut scratch)), scratch)
}

library_benchmark_group!(name = sampler, benchmarks = sample);

main!(library_benchmark_groups = sampler);
