// Float operations accurate to the last place, beyond WGSL's guarantees: sums as pairs of floats, exp, and
// rounding to f16.
//
// Pairs (x = high, y = low) are unevaluated sums with 48 bits, enough to round like the CPU's f64 sums. An
// int8 rounding follows most norms, and one unit in the last place can flip it.
//
// WGSL guarantees a division within 2.5 units in the last place, and no fused multiply-add. So products are
// made exact by splitting factors into halves of 12 bits, and quotients are corrected by their remainders.
// WGSL also allows a compiler to replace (a + b) - a by b, and some do (Mesa, Metal's fast math): a value
// that must be rounded first passes through `opaque`.

// x, hidden from the compiler's optimiser.
fn opaque(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) ^ step_zero());
}

// Tests the bits, because compilers may assume that there are no NaNs.
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// a + b, exactly (Knuth).
fn two_sum(a: f32, b: f32) -> vec2<f32> {
    let sum = opaque(a + b);
    let of_b = opaque(sum - a);
    return vec2(sum, (a - (sum - of_b)) + (b - of_b));
}

fn high_half(x: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(x) & 0xfffff000u);
}

// a b, exactly (Dekker).
fn two_product(a: f32, b: f32) -> vec2<f32> {
    let product = opaque(a * b);
    let a_high = high_half(a);
    let b_high = high_half(b);
    let a_low = a - a_high;
    let b_low = b - b_high;
    let rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low;
    return vec2(product, rest);
}

fn add_wide(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    let sum = two_sum(a.x, b.x);
    return two_sum(sum.x, sum.y + (a.y + b.y));
}

fn add_square(sum: vec2<f32>, x: f32) -> vec2<f32> {
    let square = two_product(x, x);
    let high = two_sum(sum.x, square.x);
    return vec2(high.x, sum.y + (high.y + square.y));
}

fn divide_wide(a: vec2<f32>, by: f32) -> vec2<f32> {
    let quotient = opaque(a.x / by);
    let back = two_product(quotient, by);
    return two_sum(quotient, ((a.x - back.x) - back.y + a.y) / by);
}

// a / by, rounded once.
fn divide_rounded(a: f32, by: f32) -> f32 {
    return divide_wide(vec2(a, 0.0), by).x;
}

// 1 / sqrt(a), rounded once: an approximation, and one Newton step on its error.
fn reciprocal_root(a: vec2<f32>) -> f32 {
    let near = opaque(1.0 / sqrt(a.x));
    let square = two_product(near, near);
    let whole = two_product(a.x, square.x);
    let rest = (((1.0 - whole.x) - whole.y) - a.x * square.y) - a.y * square.x;
    return near + 0.5 * near * rest;
}

// exp(x) within 1.5 units in the last place; WGSL's own may be off by 3 + 2 |x|. exp(n ln 2 + r) = 2^n
// exp(r), |r| below 0.35; ln 2 is subtracted in two parts, the first of which has few bits, so that its
// product is exact.
fn exp_near(x: f32) -> f32 {
    if (is_nan(x)) {
        return x;
    }
    // Beyond this the result is 0 or infinite.
    let n = powers_of_2(clamp(x, -110.0, 110.0));
    let near = 1.0 + less_1(clamp(x, -110.0, 110.0), n);
    // Two powers, because a single one may exceed the range of a float.
    let half = i32(n) / 2;
    return near * power_of_2(half) * power_of_2(i32(n) - half);
}

fn powers_of_2(x: f32) -> f32 {
    return round(x * 1.44269504);
}

// exp(x - n ln 2) - 1 for n from `powers_of_2`.
fn less_1(x: f32, n: f32) -> f32 {
    let r = (x - n * 0.693359375) + n * 2.12194440e-4;
    let series = 0.5
        + r * (0.166666667
        + r * (0.0416666667
        + r * (8.33333333e-3
        + r * (1.38888889e-3
        + r * 1.98412698e-4))));
    return r + r * r * series;
}

// tanh(x) = (exp(2 x) - 1) / (exp(2 x) + 1), with a relative error like that of exp.
fn tanh_near(x: f32) -> f32 {
    if (is_nan(x)) {
        return x;
    }
    // Beyond this the result is 1 or -1.
    let twice = clamp(2.0 * x, -40.0, 40.0);
    let n = powers_of_2(twice);
    let power = power_of_2(i32(n));
    let minus_1 = less_1(twice, n) * power + (power - 1.0);
    return divide_rounded(minus_1, minus_1 + 2.0);
}

fn power_of_2(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23u);
}

// The nearest f16, ties to even: pack2x16float may round either way.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    // 65520 and above.
    if (magnitude >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    // Below 2^-14, f16 values are multiples of 2^-24.
    if (magnitude < 0x38800000u) {
        return sign | u32(round(bitcast<f32>(magnitude) * 16777216.0));
    }
    let odd = (magnitude >> 13u) & 1u;
    return sign | ((magnitude + 0xfffu + odd - 0x38000000u) >> 13u);
}
