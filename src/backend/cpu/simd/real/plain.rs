//! The definition of every f32 kernel, in plain code that other sets compile for their instructions.

use ggml_types::{Act, Xielu};
use half::f16;
use half::slice::HalfFloatSliceExt;

use super::{COLUMNS, DeltaRow, HALF_COLUMNS, Matrices, RealKernels, codes, trellis};

/// Number of partial sums of a sum: lane `i` adds every `LANES`-th element from `i` on, and the lanes are
/// added in order.
pub(super) const LANES: usize = 16;

pub(crate) static KERNELS: RealKernels = RealKernels {
    gemm: gemm::<f32>,
    gemm_f16: gemm::<f16>,
    gemm_codes: codes::plain,
    search: ggml_types::turboquant::plain_search,
    expand: trellis::expand,
    max,
    exp_sum,
    dot,
    sum,
    sum_squares,
    widen,
    act,
    gate,
    sigmoid_gate,
    delta,
    convolve,
};

fn widen(x: &[f16], out: &mut [f32]) {
    x.convert_to_f32_slice(out);
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
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let mut lanes = [0.0; LANES];
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_tail).zip(b_tail) {
        *lane += a * b;
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

/// `exp(x) - 1` loses digits near 0, where the slope of the whole is `beta`.
#[inline(always)]
fn xielu(numbers: Xielu, x: f32) -> f32 {
    let Xielu { positive, negative, beta, eps } = numbers;
    let curve = if x > 0.0 { positive * x * x } else { (exp(x.min(eps)) - 1.0 - x) * negative };
    curve + beta * x
}

#[inline(always)]
pub(super) fn act(act: Act, h: &mut [f32]) {
    match act {
        Act::Relu2 => h.iter_mut().for_each(|h| *h = relu2(*h)),
        Act::Silu => h.iter_mut().for_each(|h| *h = silu(*h)),
        Act::Gelu => h.iter_mut().for_each(|h| *h = gelu(*h)),
        Act::GeluTanh => h.iter_mut().for_each(|h| *h = gelu_tanh(*h)),
        Act::ClampedSwiglu => unreachable!("the program's check requires a gate for it"),
        Act::Xielu(numbers) => h.iter_mut().for_each(|h| *h = xielu(numbers, *h)),
    }
}

#[inline(always)]
pub(super) fn gate(act: Act, gate: &[f32], h: &mut [f32]) {
    assert_eq!(gate.len(), h.len(), "a gate for each element");
    let pairs = h.iter_mut().zip(gate);
    match act {
        Act::Relu2 => pairs.for_each(|(h, g)| *h *= relu2(*g)),
        Act::Silu => pairs.for_each(|(h, g)| *h *= silu(*g)),
        Act::Gelu => pairs.for_each(|(h, g)| *h *= gelu(*g)),
        Act::GeluTanh => pairs.for_each(|(h, g)| *h *= gelu_tanh(*g)),
        Act::ClampedSwiglu => pairs.for_each(|(h, g)| *h = clamped_swiglu(*g, *h)),
        Act::Xielu(numbers) => pairs.for_each(|(h, g)| *h *= xielu(numbers, *g)),
    }
}

#[inline(always)]
pub(super) fn sigmoid_gate(gate: &[f32], h: &mut [f32]) {
    assert_eq!(gate.len(), h.len(), "a gate for each element");
    h.iter_mut().zip(gate).for_each(|(h, g)| *h /= 1.0 + exp(-g));
}

/// Columns are independent, and each sum goes through the head in order: its bits depend on nothing else.
#[inline(always)]
pub(super) fn delta(row: DeltaRow<'_>, state: &mut [f32], values: &mut [f32]) {
    match values.len() {
        COLUMNS => delta_of::<COLUMNS>(row, state, values),
        _ => delta_of::<HALF_COLUMNS>(row, state, values),
    }
}

#[inline(always)]
fn delta_of<const N: usize>(row: DeltaRow<'_>, state: &mut [f32], values: &mut [f32]) {
    let DeltaRow { q, k, decay, strength } = row;
    let (state, rest) = state.as_chunks_mut::<N>();
    let values: &mut [f32; N] = values.try_into().expect("one value per column");
    assert!(rest.is_empty() && state.len() == k.len() && q.len() == k.len(), "rows of a head");
    let mut seen = [0.0; N];
    for (s, k) in state.iter().zip(k) {
        for (seen, s) in seen.iter_mut().zip(s) {
            *seen += k * s;
        }
    }
    let mut write = [0.0; N];
    for ((write, v), seen) in write.iter_mut().zip(&*values).zip(seen) {
        *write = strength * (v - decay * seen);
    }
    let mut out = [0.0; N];
    for ((s, k), q) in state.iter_mut().zip(k).zip(q) {
        for ((s, write), out) in s.iter_mut().zip(&write).zip(&mut out) {
            *s = decay * *s + k * write;
            *out += q * *s;
        }
    }
    *values = out;
}

#[inline(always)]
pub(super) fn convolve(rows: &[&[f32]], taps: &[f32], out: &mut [f32]) {
    let n = rows.len();
    assert!(taps.len() == n * out.len() && rows.iter().all(|row| row.len() == out.len()), "rows and taps");
    for (i, (out, taps)) in out.iter_mut().zip(taps.chunks_exact(n)).enumerate() {
        let sum = rows.iter().zip(taps).fold(0.0, |sum, (row, tap)| sum + row[i] * tap);
        *out = silu(sum);
    }
}

/// Written so that NaN stays NaN.
#[inline(always)]
fn clamped_swiglu(gate: f32, up: f32) -> f32 {
    let gate = if gate > Act::CLAMP { Act::CLAMP } else { gate };
    gate / (1.0 + exp(-Act::ALPHA * gate)) * (up.clamp(-Act::CLAMP, Act::CLAMP) + 1.0)
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

/// `x / 2 erfc(-x / sqrt(2))`, with the erfc of Abramowitz and Stegun 7.1.26, which is within 1.5e-7.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let series = 1.061_405_4;
    let series = series * t - 1.453_152_1;
    let series = series * t + 1.421_413_8;
    let series = series * t - 0.284_496_72;
    let series = series * t + 0.254_829_6;
    let half = 0.5 * series * t * exp(-z * z);
    x * if x < 0.0 { half } else { 1.0 - half }
}

/// `x / 2 (1 + tanh(u))` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, and `(1 + tanh(u)) / 2 = 1 / (1 + exp(-2
/// u))`.
#[inline(always)]
fn gelu_tanh(x: f32) -> f32 {
    const TWO_SQRT_2_OVER_PI: f32 = 1.595_769;
    x / (1.0 + exp(-TWO_SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)))
}

/// `e^x`, within 3e-7 of it (relative) for `x` in [-87, 88]; 0 below, the value at 88 above; NaN for NaN.
///
/// `x = n ln 2 + r` with `|r| <= ln 2 / 2`, and the Taylor series of `e^r` up to `r^7`, whose remainder is
/// below 6e-9.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    /// ln 2 in two parts; `n` times the first is exact.
    const LN_2: [f32; 2] = [355.0 / 512.0, -2.121_944_4e-4];
    /// Adding it rounds to an integer, which is then in the low bits.
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
