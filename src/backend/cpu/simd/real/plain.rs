//! What every kernel of f32 values computes, in plain code that other sets compile for their instructions.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::{Matrices, RealKernels};
use crate::program::Act;

/// Partial sums of a sum: lane `i` has every `LANES`-th element from `i` on, and the lanes are added in order.
pub(super) const LANES: usize = 16;

pub(in crate::backend::cpu::simd) static KERNELS: RealKernels = RealKernels {
    gemm: gemm::<f32>,
    gemm_f16: gemm::<f16>,
    max,
    exp_sum,
    sum,
    sum_squares,
    widen,
    unpack3,
    unpack4,
    act,
    gate,
};

fn widen(x: &[f16], out: &mut [f32]) {
    x.convert_to_f32_slice(out);
}

// Values are chosen by comparisons, not looked up: every instruction set has those for whole vectors.

#[inline(always)]
pub(super) fn unpack3(codes: &[u8], magnitudes: &[f32; 4], out: &mut [f32]) {
    let plane = out.len() / 4;
    let (low, high) = codes.split_at(plane);
    for (part, out) in out.chunks_exact_mut(plane).enumerate() {
        let high = &high[part * plane / 8..];
        for ((out, low), high) in out.as_chunks_mut::<8>().0.iter_mut().zip(low.as_chunks::<8>().0).zip(high)
        {
            for lane in 0..8 {
                let negative = (u32::from(*high) >> lane & 1) ^ 1;
                let i = (u32::from(low[lane]) >> (2 * part) & 3) ^ (3 * negative);
                out[lane] = f32::from_bits(four(magnitudes, i).to_bits() ^ (negative << 31));
            }
        }
    }
}

#[inline(always)]
pub(super) fn unpack4(codes: &[u8], magnitudes: &[f32; 8], out: &mut [f32]) {
    let (lower, upper) = magnitudes.split_at(4);
    let (lower, upper) = ([lower[0], lower[1], lower[2], lower[3]], [upper[0], upper[1], upper[2], upper[3]]);
    for (part, out) in out.chunks_exact_mut(codes.len()).enumerate() {
        for (out, codes) in out.as_chunks_mut::<8>().0.iter_mut().zip(codes.as_chunks::<8>().0) {
            for lane in 0..8 {
                let code = u32::from(codes[lane]) >> (4 * part) & 15;
                let negative = (code >> 3) ^ 1;
                let i = (code & 7) ^ (7 * negative);
                let magnitude = if i & 4 == 0 { four(&lower, i) } else { four(&upper, i) };
                out[lane] = f32::from_bits(magnitude.to_bits() ^ (negative << 31));
            }
        }
    }
}

/// `values[i % 4]`.
#[inline(always)]
fn four(values: &[f32; 4], i: u32) -> f32 {
    let even = if i & 2 == 0 { values[0] } else { values[2] };
    let odd = if i & 2 == 0 { values[1] } else { values[3] };
    if i & 1 == 0 { even } else { odd }
}

/// `c (+)= a b`, element by element.
fn gemm<B: Copy + Into<f32>>(shape: &Matrices, a: &[f32], b: &[B], c: &mut [f32]) {
    shape.check(a, b, c);
    let Matrices { m, k, n, lda, ldb, ldc, add } = *shape;
    for row in 0..m {
        let c = &mut c[row * ldc..][..n];
        if !add {
            c.fill(0.0);
        }
        for (i, a) in a[row * lda..][..k].iter().enumerate() {
            c.iter_mut().zip(&b[i * ldb..][..n]).for_each(|(c, b)| *c += a * (*b).into());
        }
    }
}

#[inline(always)]
pub(super) fn max(x: &[f32]) -> f32 {
    let larger = |max: f32, x: f32| if x > max { x } else { max };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *x);
        }
    }
    lanes.iter().chain(tail).fold(f32::NEG_INFINITY, |max, x| larger(max, *x))
}

#[inline(always)]
pub(super) fn exp_sum(x: &mut [f32], max: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, tail) = x.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *x = exp(*x - max);
            *lane += *x;
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        *x = exp(*x - max);
        *lane += *x;
    }
    lanes.iter().sum()
}

#[inline(always)]
pub(super) fn sum(x: &[f32]) -> f64 {
    lane_sum(x, f64::from)
}

#[inline(always)]
pub(super) fn sum_squares(x: &[f32], mean: f64) -> f64 {
    lane_sum(x, |x| (f64::from(x) - mean) * (f64::from(x) - mean))
}

#[inline(always)]
fn lane_sum(x: &[f32], term: impl Fn(f32) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += term(*x);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        *lane += term(*x);
    }
    lanes.iter().sum()
}

#[inline(always)]
pub(super) fn act(act: Act, h: &mut [f32]) {
    match act {
        Act::Relu2 => h.iter_mut().for_each(|h| *h = relu2(*h)),
        Act::Silu => h.iter_mut().for_each(|h| *h = silu(*h)),
        Act::GeluTanh => h.iter_mut().for_each(|h| *h = gelu_tanh(*h)),
    }
}

#[inline(always)]
pub(super) fn gate(act: Act, gate: &[f32], h: &mut [f32]) {
    assert_eq!(gate.len(), h.len(), "a gate for each element");
    let pairs = h.iter_mut().zip(gate);
    match act {
        Act::Relu2 => pairs.for_each(|(h, g)| *h *= relu2(*g)),
        Act::Silu => pairs.for_each(|(h, g)| *h *= silu(*g)),
        Act::GeluTanh => pairs.for_each(|(h, g)| *h *= gelu_tanh(*g)),
    }
}

#[inline(always)]
fn relu2(x: f32) -> f32 {
    // Written so that NaN stays NaN.
    let x = if x < 0.0 { 0.0 } else { x };
    x * x
}

#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `x / 2 (1 + tanh(u))` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, and `(1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))`.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    const TWO_SQRT_2_OVER_PI: f32 = 1.595_769;
    x / (1.0 + exp(-TWO_SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)))
}

/// `e^x`, within 3e-7 of it (relative) for `x` in [-87, 88]; 0 below, the value at 88 above; NaN for NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, and the Taylor series of `e^r` up to `r^7`, whose rest is below 6e-9.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    /// ln 2 in two parts; `n` times the first is exact.
    const LN_2: [f32; 2] = [355.0 / 512.0, -2.121_944_4e-4];
    /// Adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x > 88.0 { 88.0 } else { x };
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = clamped - n * LN_2[0] - n * LN_2[1];
    let series = 1.0 / 5040.0;
    let series = series * r + 1.0 / 720.0;
    let series = series * r + 1.0 / 120.0;
    let series = series * r + 1.0 / 24.0;
    let series = series * r + 1.0 / 6.0;
    let series = series * r + 0.5;
    let series = series * r + 1.0;
    let series = series * r + 1.0;
    let power_of_two = f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23));
    let value = series * power_of_two;
    if x < -87.0 { 0.0 } else { value }
}
