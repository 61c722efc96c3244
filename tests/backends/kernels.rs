//! Linear layers in every kernel set that this machine can run: against values computed by bitnet.cpp,
//! against exact arithmetic, and against each other.

use std::path::Path;

use bytes::Bytes;
use ggml_types::{HostTensor, QuantType, by_name, types::REGISTRY};
use proptest::prelude::*;
use sterna::backend::cpu::linear::{Acts, CpuWeight, WeightProduct, WorkspaceSize, matmul};
use sterna::backend::cpu::pool::Pool;
use sterna::backend::cpu::simd::{self, Kernels};
use sterna::program::ActQuant;
use support::case::random_points;
use support::{golden, npy};

/// A pseudo-random generator with the same values in every run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// `n` values within 1, some of them within 12.
    fn floats(&mut self, n: usize) -> Vec<f32> {
        let mut value = || (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0;
        (0..n).map(|i| value() * if i % 53 == 7 { 12.0 } else { 1.0 }).collect()
    }
}

/// A tensor of random values of the given type, at an odd address.
fn tensor(ty: &'static dyn QuantType, rows: usize, cols: usize, noise: &mut Noise) -> HostTensor {
    let mut values = noise.floats(rows * cols);
    if ty.ternary().is_some() {
        values.iter_mut().for_each(|x| *x = (*x * 1.5).round().clamp(-1.0, 1.0) * 0.75);
    }
    let mut bytes = vec![0xff];
    bytes.extend(match ty.encodes() {
        true => ty.encode(&values, rows, cols).unwrap(),
        false => random_points(ty, rows, cols, || noise.next() as u8),
    });
    HostTensor { name: ty.name().to_owned(), ty, rows, cols, bytes: Bytes::from(bytes).slice(1..) }
}

/// `y = scale W x + bias`, plus 0.5 if `add`.
fn product(
    k: &Kernels,
    threads: usize,
    w: &CpuWeight,
    kind: ActQuant,
    x: &[f32],
    (scale, bias, add): (f32, Option<&[f32]>, bool),
) -> Vec<f32> {
    let rows = x.len() / w.cols;
    let pool = Pool::new(threads).unwrap();
    let mut acts = Acts::new(&WorkspaceSize::default().with(k, w.ty, w.cols, kind, rows), threads);
    acts.load(k, &pool, kind, rows, w.cols, |row, out| out.copy_from_slice(&x[row * w.cols..][..w.cols]));
    let mut out = vec![0.5; rows * w.rows];
    matmul(k, &pool, &mut acts, [WeightProduct { w, scale, bias, out: &mut out, add }]);
    out
}

const PLAIN: (f32, Option<&[f32]>, bool) = (1.0, None, false);

fn bits(values: &[f32]) -> Vec<u32> {
    // All NaNs are equal: their bits depend on the CPU.
    values.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

/// The defined result for int8 activations, in f64 and exact integers.
fn exact(tensor: &HostTensor, x: &[f32]) -> Vec<f64> {
    let mut weights = vec![0.0; tensor.cols];
    let mut out = Vec::new();
    for x in x.chunks_exact(tensor.cols) {
        let absmax = x.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
        let s = 127.0 / absmax.max(1e-5);
        let q: Vec<f64> =
            x.iter().map(|x| f64::from((x * s).round_ties_even().clamp(-128.0, 127.0))).collect();
        for row in 0..tensor.rows {
            tensor.ty.decode_row(&tensor.bytes, tensor.rows, row, &mut weights).unwrap();
            let sum: f64 = weights.iter().zip(&q).map(|(w, q)| f64::from(*w) * q).sum();
            out.push(sum / f64::from(s));
        }
    }
    out
}

#[test]
fn i2_s_products_match_bitnet_cpp_to_the_bit() {
    let Some(dir) = golden("ops") else { return };
    let ty = by_name("i2_s").unwrap();
    let mut cases = 0;
    for file in std::fs::read_dir(&dir).unwrap() {
        let path = file.unwrap().path();
        let Some(case) = path.to_str().unwrap().strip_suffix(".y.npy") else { continue };
        let read = |part: &str| npy(Path::new(&format!("{case}.{part}.npy")));
        let (x, y) = (read("x"), read("y"));
        let [_, cols] = x.shape[..] else { panic!("{case}: x is {:?}", x.shape) };
        let [_, rows] = y.shape[..] else { panic!("{case}: y is {:?}", y.shape) };
        let bytes = Bytes::from(read("w_i2s_bytes").bytes);
        let w = CpuWeight::new(&HostTensor { name: case.to_owned(), ty, rows, cols, bytes });
        for k in simd::all() {
            for threads in [1, 2, 3] {
                let got = product(k, threads, &w, ActQuant::I8PerToken, &x.f32s(), PLAIN);
                assert_eq!(bits(&got), bits(&y.f32s()), "{case}, {}, {threads} threads", k.name);
            }
        }
        cases += 1;
    }
    assert_eq!(cases, 7, "cases in {}", dir.display());
}

#[test]
fn sums_of_extreme_values_do_not_wrap() {
    let ty = by_name("i2_s").unwrap();
    for cols in [2560, 6912] {
        for (weight, x) in [(1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0)] {
            for rows in [1, 9] {
                let bytes = Bytes::from(ty.encode(&vec![weight; 3 * cols], 3, cols).unwrap());
                let w = CpuWeight::new(&HostTensor { name: String::new(), ty, rows: 3, cols, bytes });
                // 127 is the largest magnitude of a quantised value.
                let x = vec![x * 127.0; rows * cols];
                for k in simd::all() {
                    let got = product(k, 1, &w, ActQuant::I8PerToken, &x, PLAIN);
                    assert!(got.iter().all(|y| *y == weight * x[0] * cols as f32), "{}: {got:?}", k.name);
                }
            }
        }
    }
}

#[test]
fn nan_rows_do_not_affect_others() {
    let mut noise = Noise(1);
    let ty = by_name("i2_s").unwrap();
    let w = CpuWeight::new(&tensor(ty, 20, 384, &mut noise));
    let clean = noise.floats(11 * 384);
    for k in simd::all() {
        let want = product(k, 1, &w, ActQuant::I8PerToken, &clean, PLAIN);
        for poison in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -2e30] {
            for at in [0, 200, 383] {
                let mut x = clean.clone();
                x[4 * 384 + at] = poison;
                let got = product(k, 1, &w, ActQuant::I8PerToken, &x, PLAIN);
                for (row, (got, want)) in got.chunks(20).zip(want.chunks(20)).enumerate() {
                    match row {
                        4 => assert!(got.iter().all(|y| y.is_nan()), "{}: {poison} at {at}", k.name),
                        _ => assert_eq!(bits(got), bits(want), "{}: {poison} at {at}, row {row}", k.name),
                    }
                }
            }
        }
        // Zeros, values below the clamp, and very large values are valid.
        for (x, want) in [(0.0, 0.0), (1e-7, 1e-7), (f32::from_bits(1), 0.0), (1e30, 1e30)] {
            let bytes = ty.encode(&vec![1.0; 128], 1, 128).unwrap().into();
            let w = CpuWeight::new(&HostTensor { name: String::new(), ty, rows: 1, cols: 128, bytes });
            let mut row = vec![0.0; 128];
            row[77] = x;
            let got = product(k, 1, &w, ActQuant::I8PerToken, &row, PLAIN)[0];
            // Half a step of 1e-5 / 127, and the rounding of a quotient.
            assert!((got - want).abs() <= 4e-8_f32.max(want * 1e-6), "{}: {x} gives {got}", k.name);
        }
    }
}

/// Products with exact sums: only the operations of the scale round, and for TQ2_0 the sum over the blocks.
#[test]
fn ternary_products_match_exact_arithmetic() {
    let mut noise = Noise(2);
    for name in ["i2_s", "tq2_0", "tq1_0", "iq2_bn", "iq2_bn_r4", "iq1_bn"] {
        let tensor = tensor(by_name(name).unwrap(), 36, 2560, &mut noise);
        let x = noise.floats(7 * 2560);
        let want = exact(&tensor, &x);
        let w = CpuWeight::new(&tensor);
        for k in simd::all() {
            let got = product(k, 2, &w, ActQuant::I8PerToken, &x, PLAIN);
            for (got, want) in got.iter().zip(&want) {
                // A product is below 100 here; f32 sums of ten blocks, or of 2560 decoded weights.
                let bound = if name == "tq1_0" { 1e-3 } else { 2e-5 };
                assert!((f64::from(*got) - want).abs() < bound, "{name}, {}: {got} {want}", k.name);
            }
        }
    }
}

#[test]
fn products_of_every_type_match_its_decode_row() {
    let mut noise = Noise(3);
    for ty in ggml_types::types::REGISTRY {
        for (rows, cols) in [(19_usize, 512), (3, 256)] {
            let rows = rows.next_multiple_of(ty.rows_together());
            let tensor = tensor(*ty, rows, cols, &mut noise);
            let x = noise.floats(6 * cols);
            let w = CpuWeight::new(&tensor);
            let mut weights = vec![0.0; cols];
            for k in simd::all() {
                let got = product(k, 2, &w, ActQuant::None, &x, PLAIN);
                for (i, got) in got.iter().enumerate() {
                    tensor.ty.decode_row(&tensor.bytes, rows, i % rows, &mut weights).unwrap();
                    let terms = || {
                        let pairs = weights.iter().zip(&x[i / rows * cols..]);
                        pairs.map(|(w, x)| f64::from(*w) * f64::from(*x))
                    };
                    let (want, sizes): (f64, f64) = (terms().sum(), terms().map(f64::abs).sum());
                    // Every term is rounded at most `cols` times, by 2^-24 each.
                    let bound = sizes * cols as f64 * 6e-8 + 1e-30;
                    assert!(
                        (f64::from(*got) - want).abs() <= bound,
                        "{}, {}: {got} {want}",
                        ty.name(),
                        k.name
                    );
                }
            }
        }
    }
}

/// More rows than the kernels multiply with one set of unpacked weights.
#[test]
fn late_rows_of_a_large_batch_match_single_calls() {
    let mut noise = Noise(4);
    for (ty, kind) in [
        ("i2_s", ActQuant::I8PerToken),
        ("tq1_0", ActQuant::I8PerToken),
        ("tq2_0", ActQuant::I8PerToken),
        ("iq1_bn", ActQuant::I8PerToken),
        ("f16", ActQuant::None),
        ("q4_k", ActQuant::None),
    ] {
        let w = CpuWeight::new(&tensor(by_name(ty).unwrap(), 35, 512, &mut noise));
        let x = noise.floats(541 * 512);
        for k in simd::all() {
            let all = bits(&product(k, 2, &w, kind, &x, PLAIN));
            let last = bits(&product(k, 1, &w, kind, &x[530 * 512..], PLAIN));
            assert_eq!(&all[530 * 35..], &last, "{ty}, {}", k.name);
            let first = bits(&product(k, 1, &w, kind, &x[..3 * 512], PLAIN));
            assert_eq!(&all[..3 * 35], &first, "{ty}, {}", k.name);
        }
    }
}

/// The defined result for activations in int8 per block, in f64.
fn exact_by_block(tensor: &HostTensor, x: &[f32]) -> Vec<f64> {
    let mut weights = vec![0.0; tensor.cols];
    let mut out = Vec::new();
    for x in x.chunks_exact(tensor.cols) {
        let rounded: Vec<f64> = (x.chunks(ActQuant::BLOCK))
            .flat_map(|x| {
                let absmax = x.iter().fold(0.0_f32, |max, x| max.max(x.abs()));
                let (scale, inverse) = (f64::from(absmax / 127.0), 127.0 / absmax);
                x.iter().map(move |x| scale * f64::from((x * inverse).round_ties_even()))
            })
            .collect();
        for row in 0..tensor.rows {
            tensor.ty.decode_row(&tensor.bytes, tensor.rows, row, &mut weights).unwrap();
            out.push(weights.iter().zip(&rounded).map(|(w, x)| f64::from(*w) * x).sum());
        }
    }
    out
}

/// Rows that are longer than the part that kernels keep at a time, and rows of weights that do not fill a
/// tile.
#[test]
fn long_rows_quantised_per_block_match_f64() {
    let mut noise = Noise(8);
    for ty in REGISTRY.iter().filter(|ty| ty.block_elems() > 1) {
        let cols = (9472 + if ty.block_elems() == 32 { 32 } else { 0 }) / ty.block_elems() * ty.block_elems();
        let outputs = 17_usize.next_multiple_of(ty.rows_together());
        let mut tensor = tensor(*ty, outputs, cols, &mut noise);
        if ty.name() == "q8_0" {
            // -128, which rounding to nearest never gives.
            let mut bytes = tensor.bytes.to_vec();
            bytes.chunks_exact_mut(34).take(40).for_each(|block| block[2..].fill(0x80));
            tensor.bytes = bytes.into();
        }
        let w = CpuWeight::new(&tensor);
        let mut x = noise.floats(3 * cols);
        // The largest possible products, one after the other.
        x[..512].fill(-1.0);
        let want = exact_by_block(&tensor, &x);
        let size = want.iter().map(|y| y * y).sum::<f64>().sqrt() / (want.len() as f64).sqrt();
        for k in simd::all() {
            let three = product(k, 2, &w, ActQuant::I8PerBlock, &x, PLAIN);
            for (got, want) in three.iter().zip(&want) {
                let error = (f64::from(*got) - want).abs();
                assert!(error <= 2e-5 * size, "{}, {}: {got}, not {want}", ty.name(), k.name);
            }
            for row in 0..3 {
                let one = product(k, 1, &w, ActQuant::I8PerBlock, &x[row * cols..][..cols], PLAIN);
                assert_eq!(bits(&one), bits(&three[row * outputs..][..outputs]), "{}, {}", ty.name(), k.name);
            }
        }
    }
}

/// Enough activation rows that the kernels transpose the weights: at any end of the tiles, each row has the
/// same bits as alone.
#[test]
fn large_float_batches_match_single_rows_to_the_bit() {
    let names = ["f32", "f16", "bf16", "q8_0", "q4_0", "nvfp4", "q4_k", "iq2_s", "tq2_0"];
    for (i, ty) in names.map(|name| by_name(name).unwrap()).into_iter().enumerate() {
        // Columns that are a multiple of 16 or not, and more or less than the 768 of a tile; 288 rows are
        // twice the 144 whose sums are kept.
        for (cols, rows) in [(1024, 203), (1024, 288), (if ty.block_elems() == 1 { 41 } else { 512 }, 61)] {
            let (mut noise, outputs) = (Noise(17 + i as u64), 100);
            let tensor = tensor(ty, outputs, cols, &mut noise);
            let (w, x, bias) = (CpuWeight::new(&tensor), noise.floats(rows * cols), noise.floats(outputs));
            let with = (0.7, Some(&bias[..]), true);
            for k in simd::all() {
                let all = bits(&product(k, 2, &w, ActQuant::None, &x, with));
                for row in [0, 7, 8, 58, rows - 2, rows - 1] {
                    let alone = product(k, 1, &w, ActQuant::None, &x[row * cols..][..cols], with);
                    let (alone, all) = (bits(&alone), &all[row * outputs..][..outputs]);
                    assert_eq!(alone, all, "{}, {}, {cols} inputs, row {row}", ty.name(), k.name);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Every kernel set, every number of threads, and each row alone give the same bits.
    #[test]
    fn integer_products_match_on_every_kernel_set(
        seed in 1_u64..,
        units in 1_usize..12,
        outputs in 1_usize..120,
        rows in 1_usize..20,
        threads in 1_usize..4,
        ty in proptest::sample::select(vec!["i2_s", "tq2_0", "tq1_0", "iq2_bn", "iq2_bn_r4", "iq1_bn"]),
        add: bool,
    ) {
        let mut noise = Noise(seed);
        let ty = by_name(ty).unwrap();
        let outputs = outputs.next_multiple_of(ty.rows_together());
        let (cols, scaled) = (ty.block_elems() * units, ty.block_elems() == 256);
        let w = CpuWeight::new(&tensor(ty, outputs, cols, &mut noise));
        let (x, bias) = (noise.floats(rows * cols), noise.floats(outputs));
        let with = (0.7, scaled.then_some(&bias[..]), add);
        let sets = simd::all();
        let want = bits(&product(sets[0], 1, &w, ActQuant::I8PerToken, &x, with));
        for k in sets {
            let got = product(k, threads, &w, ActQuant::I8PerToken, &x, with);
            prop_assert_eq!(&bits(&got), &want, "{}", k.name);
            let row = seed as usize % rows;
            let alone = product(k, 1, &w, ActQuant::I8PerToken, &x[row * cols..][..cols], with);
            prop_assert_eq!(&bits(&alone), &want[row * outputs..][..outputs], "{}, row {}", k.name, row);
        }
    }

    /// Within one kernel set, every number of threads and each row alone give the same bits.
    #[test]
    fn float_products_match_within_a_kernel_set(
        seed in 1_u64..,
        ty in proptest::sample::select(REGISTRY),
        units in 1_usize..5,
        odd in 0_usize..40,
        outputs in 1_usize..60,
        rows in 1_usize..15,
        threads in 1_usize..4,
        kind in proptest::sample::select(vec![ActQuant::None, ActQuant::I8PerToken, ActQuant::I8PerBlock]),
    ) {
        let mut noise = Noise(seed);
        let outputs = outputs.next_multiple_of(ty.rows_together());
        let cols = if ty.block_elems() == 1 { 32 * units + odd } else { units * ty.block_elems() };
        let w = CpuWeight::new(&tensor(ty, outputs, cols, &mut noise));
        let x = noise.floats(rows * cols);
        for k in simd::all() {
            let all = bits(&product(k, threads, &w, kind, &x, PLAIN));
            for row in 0..rows {
                let alone = bits(&product(k, 1, &w, kind, &x[row * cols..][..cols], PLAIN));
                prop_assert_eq!(&alone, &all[row * outputs..][..outputs], "{}, row {}", k.name, row);
            }
        }
    }

    /// Every kernel set gives the same values, scale and sum.
    #[test]
    fn quantisation_matches_on_every_kernel_set(
        x in prop::collection::vec(prop_oneof![-1e3_f32..1e3, -1e-6_f32..1e-6, Just(0.5_f32)], 1..700),
    ) {
        let run = |k: &Kernels| {
            let mut q = vec![99; simd::padded(x.len())];
            let quant = (k.quantise)(&x, &mut q);
            (q, quant.scale.to_bits(), quant.sum)
        };
        let sets = simd::all();
        let want = run(sets[0]);
        for k in sets {
            prop_assert_eq!(run(k), want.clone(), "{}", k.name);
        }
    }
}
