//! Performance-critical functions whose instructions CI counts with callgrind. The counts are stored in
//! `benches/instructions.json`; `scripts/kernels/instructions` compares and updates them.
//!
//! Without an argument, lists the cases, one `FUNCTION.CASE` per line; with a case as argument, runs it once.
//! Only the function of that name in `counted` is measured, without the preparation of its argument and the
//! drop of its result.
//!
//! Callgrind does not support AVX-512, so the fastest kernels measured here are those of AVX2.

use std::hint::black_box;
use std::path::Path;
use std::{env, process};

use bytes::Bytes;
use ggml_types::{HostTensor, by_name};
use sterna::backend::cpu::linear::{Acts, CpuWeight, WeightProduct, WorkspaceSize, matmul};
use sterna::backend::cpu::pool::Pool;
use sterna::backend::cpu::simd::real::{CodeMatrix, Matrices, UNIT, UnitOf};
use sterna::backend::cpu::simd::{self, Kernels};
use sterna::gguf::Gguf;
use sterna::program::ActQuant;
use sterna::program::sampling::{Sampling, Scratch, pick};
use sterna::tokenizer::{Special, Tokenizer, TokenizerOptions};

/// Logits shaped like a language model's: a few large ones above many small ones.
fn logits(s: Sampling) -> (Sampling, Vec<f32>, Scratch) {
    let n_vocab = 128_256;
    let logits = (0..n_vocab).map(|i| (i as f32 * 0.618).sin() * 4.0 + if i % 4001 == 0 { 8.0 } else { 0.0 });
    (s, logits.collect(), Scratch::new(n_vocab))
}

const DEFAULTS: Sampling =
    Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Sampling::GREEDY };

/// A linear layer of 64 outputs and 2560 inputs, with everything that a call needs.
struct Layer {
    kernels: &'static Kernels,
    pool: Pool,
    weight: CpuWeight,
    acts: Acts,
    x: Vec<f32>,
    rows: usize,
    kind: ActQuant,
    out: Vec<f32>,
}

fn layer(kernels: &str, ty: &str, rows: usize) -> Layer {
    let (outputs, inputs) = (64, 2560);
    let kernels =
        simd::all().into_iter().find(|k| k.name == kernels).expect("kernels that this machine runs");
    let ty = by_name(ty).expect("a registered type");
    let values: Vec<f32> = (0..outputs * inputs).map(|i| (i * 7 % 3) as f32 - 1.0).collect();
    let bytes = Bytes::from(ty.encode(&values, outputs, inputs).expect("rows of whole blocks"));
    let tensor = HostTensor { name: "w".into(), ty, rows: outputs, cols: inputs, bytes };
    let weight = CpuWeight::new(&tensor);
    let kind = if ty.name() == "i2_s" { ActQuant::I8PerToken } else { ActQuant::None };
    let acts = Acts::new(&WorkspaceSize::default().with(kernels, ty, inputs, kind, rows), 1);
    Layer {
        kernels,
        pool: Pool::new(1).expect("no thread to start"),
        weight,
        acts,
        x: (0..inputs).map(|i| (i as f32 * 0.37).sin()).collect(),
        rows,
        kind,
        out: vec![0.0; rows * outputs],
    }
}

/// A page of the keys of one head, 64 of 128 elements, and four query heads that attend to it.
struct Page {
    kernels: &'static Kernels,
    unit: UnitOf,
    q: Vec<f32>,
    bytes: Vec<u8>,
    scales: Vec<f32>,
    scores: Vec<f32>,
}

fn page(kernels: &str, unit: UnitOf) -> Page {
    let kernels =
        simd::all().into_iter().find(|k| k.name == kernels).expect("kernels that this machine runs");
    Page {
        kernels,
        unit,
        q: (0..4 * 128).map(|i| (i as f32 * 0.37).sin()).collect(),
        bytes: (0..128 * unit.bytes()).map(|i| (i * 7919 % 251) as u8).collect(),
        scales: vec![0.5; UNIT],
        scores: vec![0.0; 4 * UNIT],
    }
}

fn tiny_model() -> Bytes {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/bitnet/tiny-i2_s.gguf");
    Bytes::from(std::fs::read(path).expect("test data of the project"))
}

fn tokenizer() -> Tokenizer {
    let gguf = Gguf::from_bytes(tiny_model()).expect("a sound file");
    Tokenizer::from_gguf(&gguf, TokenizerOptions::default()).expect("a sound vocabulary")
}

fn text() -> (Tokenizer, String) {
    let line =
        "You may reproduce and distribute copies of the Work, in 2 or more ways (naïve ones, too); see §4. ";
    (tokenizer(), line.repeat(20))
}

fn ids() -> (Tokenizer, Vec<u32>) {
    let (tokenizer, text) = text();
    let ids = tokenizer.encode(&text, Special::AsText, false);
    (tokenizer, ids)
}

mod counted {
    use super::*;

    #[inline(never)]
    pub fn sample((s, logits, mut scratch): (Sampling, Vec<f32>, Scratch)) -> (u32, Scratch) {
        (black_box(pick(&logits, &s, &mut scratch)), scratch)
    }

    #[inline(never)]
    pub fn linear(mut l: Layer) -> Layer {
        let (x, inputs) = (&l.x, l.x.len());
        l.acts.load(l.kernels, &l.pool, l.kind, l.rows, inputs, |_, row| row.copy_from_slice(x));
        let part = WeightProduct { w: &l.weight, scale: 1.0, bias: None, out: &mut l.out, add: false };
        matmul(l.kernels, &l.pool, &mut l.acts, [part]);
        black_box(l)
    }

    #[inline(never)]
    pub fn gemm_codes(mut p: Page) -> Page {
        let shape = Matrices { m: 4, k: 128, n: UNIT, lda: 128, ldb: 0, ldc: UNIT, add: false };
        let values = std::array::from_fn(|i| (i % 4) as f32 * 0.05 + 0.02);
        let keys = CodeMatrix {
            unit: p.unit,
            values: &values,
            bytes: &p.bytes,
            row_bytes: p.unit.bytes(),
            first: 0,
        };
        (p.kernels.real.gemm_codes)(&shape, &p.q, &keys, Some(&p.scales), &mut p.scores);
        black_box(p)
    }

    #[inline(never)]
    pub fn gguf_open(bytes: Bytes) -> Gguf {
        black_box(Gguf::from_bytes(bytes).expect("a sound file"))
    }

    #[inline(never)]
    pub fn encode((tokenizer, text): (Tokenizer, String)) -> (Tokenizer, Vec<u32>) {
        let ids = black_box(tokenizer.encode(&text, Special::AsText, false));
        (tokenizer, ids)
    }

    #[inline(never)]
    pub fn decode((tokenizer, ids): (Tokenizer, Vec<u32>)) -> (Tokenizer, Vec<u8>) {
        let bytes = black_box(tokenizer.decode(&ids, false));
        (tokenizer, bytes)
    }
}

/// A case: its name, and a function that runs it once.
type Case = (&'static str, fn());

fn once<T, R>(function: fn(T) -> R, input: T) {
    black_box(function(black_box(input)));
}

const CASES: &[Case] = &[
    ("sample.greedy", || once(counted::sample, logits(Sampling::GREEDY))),
    ("sample.defaults", || once(counted::sample, logits(DEFAULTS))),
    ("sample.nucleus", || once(counted::sample, logits(Sampling { top_k: 0, ..DEFAULTS }))),
    ("linear.i2_s_scalar_row", || once(counted::linear, layer("scalar", "i2_s", 1))),
    ("linear.i2_s_avx2_row", || once(counted::linear, layer("avx2", "i2_s", 1))),
    ("linear.i2_s_avx2_64_rows", || once(counted::linear, layer("avx2", "i2_s", 64))),
    ("linear.f16_avx2_row", || once(counted::linear, layer("avx2", "f16", 1))),
    ("linear.q8_0_avx2_row", || once(counted::linear, layer("avx2", "q8_0", 1))),
    ("linear.q6_k_avx2_row", || once(counted::linear, layer("avx2", "q6_k", 1))),
    ("gemm_codes.turboquant_scalar", || once(counted::gemm_codes, page("scalar", UnitOf::Signed3))),
    ("gemm_codes.turboquant_avx2", || once(counted::gemm_codes, page("avx2", UnitOf::Signed3))),
    ("gemm_codes.turboquant_4_avx2", || once(counted::gemm_codes, page("avx2", UnitOf::Table4))),
    ("gemm_codes.q8_0_avx2", || once(counted::gemm_codes, page("avx2", UnitOf::Int8))),
    ("gguf_open.tiny", || once(counted::gguf_open, tiny_model())),
    ("encode.two_kilobytes", || once(counted::encode, text())),
    ("decode.two_kilobytes", || once(counted::decode, ids())),
];

fn main() {
    match env::args().nth(1) {
        None => CASES.iter().for_each(|(name, _)| println!("{name}")),
        Some(wanted) => match CASES.iter().find(|(name, _)| *name == wanted) {
            Some((_, run)) => run(),
            None => {
                eprintln!("unknown case {wanted}");
                process::exit(2);
            }
        },
    }
}
