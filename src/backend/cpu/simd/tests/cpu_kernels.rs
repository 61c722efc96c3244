//! Tests norms, activation functions and matrix products of every instruction set against the scalar table.

use ggml_types::turboquant::{SEARCHED, TRELLIS_2, TRELLIS_3, TRELLIS_4, Trellis};
use ggml_types::{Act, Xielu};
use half::f16;
use sterna_cpu_kernels::real::{Along, CodeMatrix, Matrices, RealKernels, TrellisMatrix, UNIT, UnitOf, exp};

/// The reference.
fn plain() -> &'static RealKernels {
    sterna_cpu_kernels::all()[0].real
}

/// A simple deterministic generator.
fn random(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(n).collect()
}

#[test]
fn exp_is_as_exact_as_it_says() {
    let mut x = -87.0_f32;
    while x <= 88.0 {
        let want = f64::from(x).exp();
        assert!(((f64::from(exp(x)) - want) / want).abs() < 3e-7, "exp({x})");
        x += 0.000_917;
    }
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(-87.1), 0.0);
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(exp(f32::INFINITY), exp(88.0));
    assert!(exp(f32::NAN).is_nan() && exp(-f32::NAN).is_nan());
}

#[test]
fn every_set_gives_the_same_bits() {
    for set in sterna_cpu_kernels::all() {
        for n in [0, 1, 15, 16, 17, 255, 2560] {
            let (x, h) = (random(n, 1), random(n, 2));
            let same = |ours: &dyn Fn(&RealKernels) -> Vec<f64>| {
                let bits = |values: Vec<f64>| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(ours(set.real)), bits(ours(plain())), "{}, {n} elements", set.name);
            };
            same(&|k| vec![f64::from((k.dot)(&x, &h))]);
            same(&|k| vec![f64::from((k.max)(&x)), (k.sum)(&x), (k.sum_squares)(&x, 0.25)]);
            same(&|k| {
                let mut y = x.clone();
                let sum = (k.exp_sum)(&mut y, 0.5);
                y.iter().chain([&sum]).map(|y| f64::from(*y)).collect()
            });
            same(&|k| {
                let halves: Vec<f16> = x.iter().copied().map(f16::from_f32).collect();
                let mut wide = vec![0.0; n];
                (k.widen)(&halves, &mut wide);
                wide.into_iter().map(f64::from).collect()
            });
            for act in [Act::Relu2, Act::Silu, Act::Gelu, Act::GeluTanh, Act::Xielu(XIELU)] {
                same(&|k| {
                    let (mut alone, mut gated) = (x.clone(), h.clone());
                    (k.act)(act, &mut alone);
                    (k.gate)(act, &x, &mut gated);
                    alone.iter().chain(&gated).map(|y| f64::from(*y)).collect()
                });
            }
        }
    }
}

const XIELU: Xielu = Xielu { positive: 0.7, negative: 1.3, beta: 0.5, eps: -1e-6 };

#[test]
fn activations_are_what_they_are_called() {
    let x: Vec<f32> = (-400..=400).map(|i| i as f32 / 20.0).chain([-1e3, 1e3]).collect();
    let with = |act| {
        let mut y = x.clone();
        (plain().act)(act, &mut y);
        y.into_iter().map(f64::from).zip(x.iter().map(|x| f64::from(*x))).collect::<Vec<_>>()
    };
    for (y, x) in with(Act::Relu2) {
        assert_eq!(y, x.max(0.0).powi(2) as f32 as f64);
    }
    // The error of `exp` plus a few roundings, relative to a result that is at most |x|.
    let bound = |x: f64| 5e-7 * x.abs();
    for (y, x) in with(Act::Silu) {
        assert!((y - x / (1.0 + (-x).exp())).abs() <= bound(x), "silu({x}) = {y}");
    }
    for (y, x) in with(Act::Gelu) {
        assert!((y - x * normal(x)).abs() <= bound(x), "gelu({x}) = {y}");
    }
    for (y, x) in with(Act::GeluTanh) {
        let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        // An error of the argument of exp grows with the argument, while the result falls faster.
        assert!((y - 0.5 * x * (1.0 + u.tanh())).abs() <= 4.0 * bound(x), "gelu({x}) = {y}");
    }
}

/// The error of `exp`, and a few roundings of terms of at most 2 |x| and x^2.
#[test]
fn xielu_is_what_it_is_called() {
    let x: Vec<f32> = (-400..=400).map(|i| i as f32 / 20.0).chain([-1e3, 1e3, -1e-7]).collect();
    let mut y = x.clone();
    (plain().act)(Act::Xielu(XIELU), &mut y);
    let [positive, negative, beta, eps] =
        [XIELU.positive, XIELU.negative, XIELU.beta, XIELU.eps].map(f64::from);
    for (y, x) in y.into_iter().zip(x) {
        let (y, x) = (f64::from(y), f64::from(x));
        let curve = if x > 0.0 { positive * x * x } else { (x.min(eps).exp_m1() - x) * negative };
        let bound = 1e-6 * (1.0 + 2.0 * x.abs() + if x > 0.0 { x * x } else { 0.0 });
        assert!((y - curve - beta * x).abs() <= bound, "xielu({x}) = {y}");
    }
}

/// Distribution function of the normal distribution, by Simpson's rule.
fn normal(x: f64) -> f64 {
    const STEPS: usize = 2000;
    let end = x.abs().min(12.0);
    let density = |i: usize| (-0.5 * (end * i as f64 / STEPS as f64).powi(2)).exp();
    let weight = |i: usize| if i == 0 || i == STEPS { 1.0 } else { 2.0 + 2.0 * (i % 2) as f64 };
    let sum: f64 = (0..=STEPS).map(|i| weight(i) * density(i)).sum();
    let half = sum * end / STEPS as f64 / 3.0 / (2.0 * std::f64::consts::PI).sqrt();
    if x < 0.0 { 0.5 - half } else { 0.5 + half }
}

#[test]
fn gemm_is_a_matrix_product() {
    for set in sterna_cpu_kernels::all() {
        for m in [1, 2, 3, 4, 5, 6, 7, 13] {
            for (k, n) in [(0, 8), (1, 1), (7, 17), (64, 128), (128, 64), (33, 80), (5, 200)] {
                for add in [false, true] {
                    let shape = Matrices { m, k, n, lda: k + 3, ldb: n + 5, ldc: n + 1, add };
                    let (a, b) = (random(m * shape.lda, 3), random((k + 1) * shape.ldb, 4));
                    let before = random(m * shape.ldc, 5);
                    // Values that f16 represents exactly, so that both kernels multiply the same.
                    let halves: Vec<f16> = b.iter().copied().map(f16::from_f32).collect();
                    let b: Vec<f32> = halves.iter().copied().map(f16::to_f32).collect();
                    let (mut c, mut of_halves) = (before.clone(), before.clone());
                    (set.real.gemm)(&shape, &a, &b, &mut c);
                    (set.real.gemm_f16)(&shape, &a, &halves, &mut of_halves);
                    assert_eq!(c, of_halves, "{}: {shape:?} of f16", set.name);
                    for (i, (got, before)) in c.iter().zip(&before).enumerate() {
                        let (row, col) = (i / shape.ldc, i % shape.ldc);
                        if col >= n {
                            assert_eq!(got, before, "{}: {shape:?} wrote beyond a row", set.name);
                            continue;
                        }
                        let terms = (0..k)
                            .map(|i| f64::from(a[row * shape.lda + i]) * f64::from(b[i * shape.ldb + col]));
                        let want = terms.sum::<f64>() + if add { f64::from(*before) } else { 0.0 };
                        // At most k + 1 roundings of a sum below k + 1.
                        let bound = ((k + 1) * (k + 1)) as f64 * 6e-8;
                        assert!(
                            (f64::from(*got) - want).abs() <= bound,
                            "{}: {shape:?}: {got} {want}",
                            set.name
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn rows_of_gemm_are_independent_to_the_bit() {
    for set in sterna_cpu_kernels::all() {
        let shape = Matrices { m: 13, k: 70, n: 96, lda: 70, ldb: 96, ldc: 96, add: false };
        let (mut a, b) = (random(13 * 70, 6), random(70 * 96, 7));
        a[5 * 70..6 * 70].fill(f32::NAN);
        let mut all = vec![0.0; 13 * 96];
        (set.real.gemm)(&shape, &a, &b, &mut all);
        for row in (0..13).filter(|row| *row != 5) {
            let mut one = vec![0.0; 96];
            (set.real.gemm)(&Matrices { m: 1, k: 30, ..shape }, &a[row * 70..], &b, &mut one);
            let rest = Matrices { m: 1, k: 40, add: true, ..shape };
            (set.real.gemm)(&rest, &a[row * 70 + 30..], &b[30 * 96..], &mut one);
            assert_eq!(all[row * 96..][..96], one, "{}: row {row}", set.name);
        }
    }
}

/// Calls `each` with units of every kind, filled with arbitrary bytes.
fn code_matrices(values: &[f32; 16], mut each: impl FnMut(UnitOf, &[f32; 16], usize, &[u8])) {
    let repeated = std::array::from_fn(|i| values[i % 4]);
    let units = [
        (UnitOf::Signed3, &repeated),
        (UnitOf::Table2, &repeated),
        (UnitOf::Sign, &repeated),
        (UnitOf::Table4, values),
        (UnitOf::Int8, values),
    ];
    for (unit, values) in units {
        for units in [1, 2, 3] {
            let row_bytes = units * unit.bytes() + 5;
            let noise = random(70 * row_bytes, 8);
            let bytes: Vec<u8> = noise.iter().map(|x| (x * 1e6) as i32 as u8).collect();
            each(unit, values, units, &bytes);
        }
    }
}

#[test]
fn products_with_codes_are_matrix_products() {
    let table: [f32; 16] = std::array::from_fn(|i| (i as f32 * 0.7).sin() + 0.1);
    code_matrices(&table, |unit, values, units, bytes| {
        let row_bytes = units * unit.bytes() + 5;
        for set in sterna_cpu_kernels::all() {
            for (m, k) in [(1, 1), (3, 0), (4, 32), (7, 64), (13, 70)] {
                for (first, n) in [(0, 32), (0, 64), (32, 32), (32, 64), (64, 96), (0, 160), (32, 160)] {
                    if first + n > units * UNIT {
                        continue;
                    }
                    for (add, scaled) in [(false, false), (true, false), (false, true), (true, true)] {
                        let shape = Matrices { m, k, n, lda: k + 3, ldb: 0, ldc: n + 1, add };
                        let b = CodeMatrix { unit, values, bytes, row_bytes, first };
                        let a = random(m * shape.lda, 3);
                        let before = random(m * shape.ldc, 5);
                        let scales = scaled.then(|| random(n, 9));
                        let mut c = before.clone();
                        (set.real.gemm_codes)(&shape, &a, &b, scales.as_deref(), &mut c);
                        for (i, (got, before)) in c.iter().zip(&before).enumerate() {
                            let (row, col) = (i / shape.ldc, i % shape.ldc);
                            if col >= n {
                                assert_eq!(got, before, "{}: {shape:?} wrote beyond a row", set.name);
                                continue;
                            }
                            let value = |i: usize| {
                                let unit_bytes = (first + col) / UNIT * unit.bytes();
                                unit.value(values, &bytes[i * row_bytes + unit_bytes..], (first + col) % UNIT)
                            };
                            let terms =
                                || (0..k).map(|i| f64::from(a[row * shape.lda + i]) * f64::from(value(i)));
                            let scale = scales.as_ref().map_or(1.0, |s| f64::from(s[col]));
                            let before = if add { f64::from(*before) } else { 0.0 };
                            let want = before + scale * terms().sum::<f64>();
                            // Every term is rounded at most k + 2 times, by 2^-24 each.
                            let size = before.abs() + terms().map(f64::abs).sum::<f64>();
                            let bound = (k + 2) as f64 * 6e-8 * size;
                            assert!(
                                (f64::from(*got) - want).abs() <= bound,
                                "{}: {unit:?}, {shape:?}: {got} {want}",
                                set.name
                            );
                        }
                    }
                }
            }
        }
    });
}

/// Each row gives the same bits for any number of rows in a call and any division of the sum into pieces.
#[test]
fn rows_of_products_with_codes_are_independent_to_the_bit() {
    let table: [f32; 16] = std::array::from_fn(|i| (i as f32 * 0.7).sin() + 0.1);
    code_matrices(&table, |unit, values, units, bytes| {
        let (row_bytes, n) = (units * unit.bytes() + 5, units * UNIT);
        for set in sterna_cpu_kernels::all() {
            let shape = Matrices { m: 13, k: 70, n, lda: 70, ldb: 0, ldc: n, add: false };
            let b = CodeMatrix { unit, values, bytes, row_bytes, first: 0 };
            let mut a = random(13 * 70, 6);
            a[5 * 70..6 * 70].fill(f32::NAN);
            let mut all = vec![0.0; 13 * n];
            (set.real.gemm_codes)(&shape, &a, &b, None, &mut all);
            for row in (0..13).filter(|row| *row != 5) {
                let mut one = vec![0.0; n];
                (set.real.gemm_codes)(&Matrices { m: 1, k: 30, ..shape }, &a[row * 70..], &b, None, &mut one);
                let (b, rest) = (
                    CodeMatrix { bytes: &bytes[30 * row_bytes..], ..b },
                    Matrices { m: 1, k: 40, add: true, ..shape },
                );
                (set.real.gemm_codes)(&rest, &a[row * 70 + 30..], &b, None, &mut one);
                assert_eq!(all[row * n..][..n], one, "{}: {unit:?}, row {row}", set.name);
            }
        }
    });
}

const TRELLISES: [&Trellis; 3] = [&TRELLIS_2, &TRELLIS_3, &TRELLIS_4];

/// Every set finds the codes of the definition, for Gaussian-like vectors and for hostile ones.
#[test]
fn every_set_finds_the_same_codes() {
    for trellis in TRELLISES {
        for len in [16, 32, 64, 128, 256] {
            for n in [1, 5, SEARCHED] {
                let mut x: Vec<i16> = (random(n * len, 7).iter().zip(random(n * len, 8)))
                    .map(|(a, b)| ((a + b) * 75.0) as i16)
                    .collect();
                x[0] = Trellis::MOST;
                if n > 1 {
                    x[len..2 * len].fill(-64);
                    x[2 * len..3 * len].fill(0);
                }
                let mut want = vec![0xee; n * len];
                x.chunks_exact(len)
                    .zip(want.chunks_exact_mut(len))
                    .for_each(|(x, codes)| trellis.search(x, codes));
                for set in sterna_cpu_kernels::all() {
                    let mut got = vec![0xdd; n * len];
                    (set.real.search)(trellis, len, &x, &mut got);
                    assert!(got == want, "{}: {} bits, {n} of {len}", set.name, trellis.bits());
                }
            }
        }
    }
}

/// Units of codes are expanded to the values that the trellis decodes, in both directions.
#[test]
fn every_set_expands_codes_to_their_values() {
    for (trellis, vectors) in [
        (&TRELLIS_4, Along::Columns),
        (&TRELLIS_2, Along::Columns),
        (&TRELLIS_3, Along::Columns),
        (&TRELLIS_3, Along::Rows(1)),
        (&TRELLIS_3, Along::Rows(2)),
        (&TRELLIS_3, Along::Rows(4)),
        (&TRELLIS_2, Along::Rows(1)),
        (&TRELLIS_4, Along::Rows(3)),
    ] {
        let units = 12;
        let codes: Vec<u8> = random(units * UNIT, 9)
            .iter()
            .map(|x| (x * 1e6) as i32 as u8 & ((1 << trellis.bits()) - 1))
            .collect();
        let unit_of = TrellisMatrix::unit_of(trellis);
        let mut bytes = vec![0; units * unit_of.bytes()];
        for (i, code) in codes.iter().enumerate() {
            unit_of.put(&mut bytes[i / UNIT * unit_of.bytes()..], i % UNIT, *code);
        }
        let row = |i: usize| match vectors {
            Along::Columns => (i % UNIT..units * UNIT).step_by(UNIT).collect::<Vec<_>>(),
            Along::Rows(n) => (i * n * UNIT..(i + 1) * n * UNIT).collect(),
        };
        let n_vectors = match vectors {
            Along::Columns => UNIT,
            Along::Rows(n) => units / n,
        };
        let mut want = vec![0; units * UNIT];
        for at in (0..n_vectors).map(row) {
            let of_vector: Vec<u8> = at.iter().map(|i| codes[*i]).collect();
            let values = trellis.decode(of_vector.into_iter());
            at.iter().zip(values).for_each(|(i, value)| want[*i] = value.cast_unsigned());
        }
        for set in sterna_cpu_kernels::all() {
            let mut got = vec![0x55; units * UNIT];
            (set.real.expand)(&TrellisMatrix { trellis, vectors, bytes: &bytes }, &mut got);
            assert!(got == want, "{}: {} bits, {vectors:?}", set.name, trellis.bits());
        }
    }
}
