//! Compares the CPU backend's kernels in WebAssembly: every instruction set with the scalar kernels, and
//! those with the results of any other processor, by a digest that a test of this crate also checks natively.
//!
//! `scripts/kernels/wasm` compiles this for WebAssembly and runs it in Node. The module calls no imports.
#![allow(unsafe_code)] // Exported names could clash with others.

use std::sync::{Mutex, OnceLock};

use bytes::Bytes;
use ggml_types::{HostTensor, QuantType, types, types::REGISTRY};
use half::f16;
use sterna::backend::cpu::Cpu;
use sterna::backend::cpu::linear::{Acts, CpuWeight, WeightProduct, WorkspaceSize, matmul};
use sterna::backend::cpu::pool::Pool;
use sterna::backend::cpu::simd::{self, Kernels, real::Matrices};
use sterna::engine::{ActType, Engine, EngineOptions};
use sterna::gguf::Gguf;
use sterna::program::{Act, ActQuant};
use support::case::random_points;

/// [`Compared::digest`] of [`kernels`], on every processor.
pub const KERNELS: u32 = 0x6a45_f046;
/// [`Compared::digest`] of [`texts`], on every processor and instruction set.
pub const TEXTS: u32 = 0x7e33_23ae;

/// Result of a comparison.
#[derive(Debug, Default)]
pub struct Compared {
    /// Instruction sets.
    pub sets: Vec<&'static str>,
    /// Number of comparisons.
    pub n: usize,
    /// One line per failed comparison.
    pub differences: Vec<String>,
    /// Digest of all bits that the scalar kernels returned.
    pub digest: u32,
}

impl Compared {
    fn add(&mut self, bits: impl IntoIterator<Item = u32>) {
        for bits in bits {
            self.digest = (self.digest.rotate_left(5) ^ bits).wrapping_mul(0x9e37_79b9);
        }
    }

    fn same(&mut self, what: impl Fn() -> String, is_same: bool) {
        self.n += 1;
        if !is_same {
            self.differences.push(what());
        }
    }
}

struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

fn tensor(ty: &'static dyn QuantType, rows: usize, cols: usize, noise: &mut Noise) -> HostTensor {
    let mut values = noise.floats(rows * cols);
    if ty.ternary().is_some() {
        values.iter_mut().for_each(|x| *x = (*x * 1.5).round().clamp(-1.0, 1.0) * 0.75);
    }
    let bytes = match ty.encodes() {
        true => ty.encode(&values, rows, cols).expect("a shape of the type"),
        false => random_points(ty, rows, cols, || noise.next() as u8),
    };
    HostTensor { name: ty.name().to_owned(), ty, rows, cols, bytes: Bytes::from(bytes) }
}

fn product(k: &Kernels, w: &CpuWeight, kind: ActQuant, x: &[f32]) -> Vec<f32> {
    let rows = x.len() / w.cols;
    let pool = Pool::new(1).expect("no thread is started");
    let mut acts = Acts::new(&WorkspaceSize::default().with(k, w.ty, w.cols, kind, rows), 1);
    acts.load(k, &pool, kind, rows, w.cols, |row, out| out.copy_from_slice(&x[row * w.cols..][..w.cols]));
    let mut out = vec![0.5; rows * w.rows];
    matmul(k, &pool, &mut acts, [WeightProduct { w, scale: 1.0, bias: None, out: &mut out, add: true }]);
    out
}

/// Compares every kernel of every instruction set.
pub fn kernels() -> Compared {
    let mut found = Compared::default();
    let sets = simd::all();
    found.sets = sets.iter().map(|k| k.name).collect();
    products(&sets, &mut found);
    rounding(&sets, &mut found);
    reals(&sets, &mut found);
    found
}

/// Types whose products with int8 activations are computed in integers.
const INT8: [&dyn QuantType; 6] =
    [&types::I2S, &types::Tq1_0, &types::Tq2_0, &types::Iq1Bn, &types::Iq2Bn, &types::Iq2BnR4];

/// Compares products of all types: integer ones must be bit-identical, and others within the rounding of each
/// term of the sum.
fn products(sets: &[&'static Kernels], found: &mut Compared) {
    const COLS: usize = 512;
    let mut noise = Noise(7);
    for ty in REGISTRY {
        let tensor = tensor(*ty, 20, COLS, &mut noise);
        let w = CpuWeight::new(&tensor);
        let mut weights = vec![0.0; 20 * COLS];
        for (row, weights) in weights.chunks_exact_mut(COLS).enumerate() {
            ty.decode_row(&tensor.bytes, 20, row, weights).expect("it has the row");
        }
        for n in [1, 2, 3, 4, 7, 9, 19] {
            let x = noise.floats(n * COLS);
            for kind in [ActQuant::None, ActQuant::I8PerToken, ActQuant::I8PerBlock] {
                let want = product(sets[0], &w, kind, &x);
                found.add(bits(&want));
                let exact = kind == ActQuant::I8PerToken && INT8.iter().any(|one| one.is(*ty));
                for k in &sets[1..] {
                    let got = product(k, &w, kind, &x);
                    let what = || format!("{} {}, {n} rows, {kind:?}", k.name, ty.name());
                    let close = |i: usize| {
                        let pairs = weights[i % 20 * COLS..][..COLS].iter().zip(&x[i / 20 * COLS..]);
                        let size: f32 = pairs.map(|(w, x)| (w * x).abs()).sum();
                        (got[i] - want[i]).abs() <= 2.0 * size * COLS as f32 * 6e-8 + 1e-6
                    };
                    let is_same = if exact { bits(&got) == bits(&want) } else { (0..got.len()).all(close) };
                    found.same(what, is_same);
                    // A row by itself must give the same bits as in a batch.
                    let last = product(k, &w, kind, &x[(n - 1) * COLS..]);
                    found.same(|| what() + ", alone", bits(&last) == bits(&got[(n - 1) * 20..]));
                }
            }
        }
    }
}

fn rounding(sets: &[&'static Kernels], found: &mut Compared) {
    let mut noise = Noise(11);
    for n in [1, 15, 16, 100, 256, 700] {
        let x: Vec<f32> =
            noise.floats(n).iter().enumerate().map(|(i, x)| x * [1.0, 1e-5, 300.0][i % 3]).collect();
        let run = |k: &Kernels| {
            let mut q = vec![99; simd::padded(n)];
            let quant = (k.quantise)(&x, &mut q);
            (q, quant.scale.to_bits(), quant.sum)
        };
        let want = run(sets[0]);
        found.add([want.1, want.2 as u32]);
        sets.iter().for_each(|k| found.same(|| format!("{} rounds {n} values", k.name), run(k) == want));
    }
}

/// Everything except the matrix product is the same in every set; the matrix product, too, unless it uses
/// fused multiply-add.
fn reals(sets: &[&'static Kernels], found: &mut Compared) {
    let mut noise = Noise(13);
    for n in [1, 15, 16, 33, 250] {
        let (x, y) = (noise.floats(n), noise.floats(n));
        let halves: Vec<f16> = x.iter().map(|x| f16::from_f32(x * 1e-5)).collect();
        let (m, k) = (5, 37);
        let (a, b) = (noise.floats(m * k), noise.floats(k * n));
        let run = |kernels: &Kernels| {
            let real = kernels.real;
            let mut out = vec![(real.max)(&x), (real.dot)(&x, &y), (real.sum)(&x) as f32];
            out.push((real.sum_squares)(&x, 0.25) as f32);
            let mut values = x.clone();
            out.push((real.exp_sum)(&mut values, 1.0));
            out.extend(values);
            let mut wide = vec![0.0; n];
            (real.widen)(&halves, &mut wide);
            out.extend(wide);
            let mut gated = y.clone();
            (real.gate)(Act::Silu, &x, &mut gated);
            out.extend(gated);
            let mut c = vec![0.25; m * n];
            let shape = Matrices { m, k, n, lda: k, ldb: n, ldc: n, add: true };
            (real.gemm)(&shape, &a, &b, &mut c);
            (out, c)
        };
        let (want, want_c) = run(sets[0]);
        found.add(bits(&want));
        found.add(bits(&want_c));
        for set in &sets[1..] {
            let (got, got_c) = run(set);
            found.same(|| format!("{}: real numbers, {n}", set.name), bits(&got) == bits(&want));
            let close = got_c.iter().zip(&want_c).all(|(got, want)| (got - want).abs() < 1e-4);
            let is_same = if cfg!(target_arch = "wasm32") { bits(&got_c) == bits(&want_c) } else { close };
            found.same(|| format!("{}: matrix product, {n}", set.name), is_same);
        }
    }
}

/// Compares greedy output of tiny models for every instruction set: the tokens must be those of the scalar
/// kernels.
pub fn texts() -> Compared {
    let mut found = Compared::default();
    let codecs: &[&str] = &["f16", "q8_0", "turboquant"];
    let models: [(&str, &'static [u8], &[&str]); 3] = [
        ("bitnet", include_bytes!("../data/golden/bitnet/tiny-i2_s.gguf"), codecs),
        ("qwen3", include_bytes!("../data/golden/qwen3/tiny-f16.gguf"), codecs),
        // Its heads of 16 elements are too short for the other types.
        ("gpt-oss", include_bytes!("../data/golden/gpt-oss/tiny-mxfp4.gguf"), &["f16"]),
    ];
    for (name, bytes, codecs) in models {
        for kv in codecs {
            let text = |k: &'static Kernels| {
                let options = EngineOptions {
                    n_ctx: Some(128),
                    threads: Some(1),
                    cache_type_k: kv.parse().unwrap(),
                    cache_type_v: kv.parse().unwrap(),
                    act_type: ActType::Trained,
                    ..EngineOptions::default()
                };
                let gguf = Gguf::from_bytes(Bytes::from_static(bytes)).expect("a golden file");
                let cpu = Cpu::with_kernels(1, k).expect("no thread is started");
                let engine =
                    Engine::on_backend(gguf, &options, Box::new(cpu), |_| ()).expect("a golden file");
                let mut session = engine.session().expect("there is one");
                let mut tokens: Vec<u32> = vec![1, 70, 5, 33, 9];
                let mut logits = session.logits(&tokens).expect("there is room");
                for _ in 0..48 {
                    let best = (0..logits.len()).rev().max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
                    tokens.push(best.expect("a vocabulary") as u32);
                    logits = session.logits(&tokens[tokens.len() - 1..]).expect("there is room");
                }
                tokens
            };
            let sets = simd::all();
            let want = text(sets[0]);
            found.add(want.iter().copied());
            for k in &sets[1..] {
                let got = text(k);
                found.same(|| format!("{name}, {kv} cache, {}: {got:?}, want {want:?}", k.name), got == want);
            }
        }
    }
    found
}

/// The report: a line per set, digest and difference; it ends with `ok` if there are no differences.
fn report() -> &'static str {
    static REPORT: OnceLock<String> = OnceLock::new();
    REPORT.get_or_init(|| {
        let (kernels, texts) = (kernels(), texts());
        let mut lines = vec![format!("{} comparisons of {}", kernels.n + texts.n, kernels.sets.join(", "))];
        lines.extend(
            kernels.differences.iter().chain(&texts.differences).map(|line| format!("differs: {line}")),
        );
        for (what, got, want) in [("kernels", kernels.digest, KERNELS), ("texts", texts.digest, TEXTS)] {
            if got != want {
                lines.push(format!("differs: {what} have digest {got:#010x}, natively {want:#010x}"));
            }
        }
        if lines.len() == 1 {
            lines.push("ok".to_owned());
        }
        lines.join("\n")
    })
}

/// Message of the last panic.
static PANIC: Mutex<String> = Mutex::new(String::new());

/// Records panics: a trap in the module has no message.
#[unsafe(no_mangle)]
pub extern "C" fn remember_panics() {
    std::panic::set_hook(Box::new(|panic| *PANIC.lock().expect("one thread") = panic.to_string()));
}

/// Address of the panic message.
#[unsafe(no_mangle)]
pub extern "C" fn panic_start() -> *const u8 {
    PANIC.lock().expect("one thread").as_ptr()
}

/// Length of the panic message in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn panic_len() -> usize {
    PANIC.lock().expect("one thread").len()
}

/// Address of the report.
#[unsafe(no_mangle)]
pub extern "C" fn report_start() -> *const u8 {
    report().as_ptr()
}

/// Length of the report in bytes.
#[unsafe(no_mangle)]
pub extern "C" fn report_len() -> usize {
    report().len()
}

#[cfg(test)]
mod tests {
    /// Checks the digests natively.
    #[test]
    fn kernel_digests_match_other_processors() {
        let report = super::report();
        assert!(report.ends_with("\nok"), "{report}");
    }
}
