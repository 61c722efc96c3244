// The input of linear layers: rows of a buffer, normalised and quantised as the layers require.
//
//   n = (x - mean) * factor * weight + bias, within the layer's bounds, if it has some
//   s = 127 / max(absmax(n), 1e-5), q = round_half_even(n s)
//
// A workgroup owns one row; if a row of the step has several, they are neighbours (x). Rows begin `pitch`
// elements apart, and the first one at `first_at`. For integer products,
// acts holds four int8 per word and quants has (s, sum of q) of each row; otherwise acts holds floats: n, or
// q / s if the layer quantises to int8. Elements beyond the columns are 0.
#set reduce = [
    ("reduce_wide", "vec2<f32>", "add_wide"),
    ("reduce_max", "u32", "max_bits"),
    ("reduce_sum", "i32", "sum_ints"),
]
#include "lib/main.wgsl"
#include "lib/floats.wgsl"
#include "lib/norm.wgsl"

struct Params {
    norm: Norm,
    cols: u32,
    // Words per row of acts.
    stride: u32,
    int8: u32,
    of_outputs: u32,
    first_at: u32,
    pitch: u32,
    // 1 if inputs have bounds.
    bounded: u32,
    lower: f32,
    upper: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> constants: array<f32>;
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> acts: array<u32>;
@group(0) @binding(5) var<storage, read_write> quants: array<vec2<u32>>;

// A row with a magnitude above 1e30 (these are its bits) is treated as broken: every product with it is NaN.
const MAX_ACT_BITS: u32 = 0x7149f2cau;
const NAN_BITS: u32 = 0x7fc00000u;

var<private> row_at: u32;

fn source(i: u32) -> f32 {
    return x[row_at + i];
}

// An element of the row, normalised and within the bounds.
fn input_of(norm: vec2<f32>, col: u32) -> f32 {
    let n = normed(params.norm, norm, source(col), col);
    if (params.bounded == 0u) {
        return n;
    }
    // Comparisons keep NaN.
    let below = select(n, params.upper, n > params.upper);
    return select(below, params.lower, below < params.lower);
}

fn max_bits(a: u32, b: u32) -> u32 {
    return max(a, b);
}

fn sum_ints(a: i32, b: i32) -> i32 {
    return a + b;
}

fn rounded(n: f32, scale: f32) -> f32 {
    return clamp(round(n * scale), -128.0, 127.0);
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let r = workgroup.y * workgroups.x + workgroup.x;
    var source_row = r;
    if (params.of_outputs == 1u) {
        source_row = output_row(r);
    }
    row_at = params.first_at + source_row * params.pitch;
    let norm = norm_of(params.norm, params.cols);
    var scale = 1.0;
    var broken = false;
    if (params.int8 == 1u) {
        // As integers, the bits of magnitudes are ordered like the floats, with NaN above everything.
        var largest = 0u;
        for (var col = thread; col < params.cols; col += THREADS) {
            largest = max(largest, bitcast<u32>(input_of(norm, col)) & 0x7fffffffu);
        }
        largest = reduce_max(largest);
        broken = largest > MAX_ACT_BITS;
        if (!broken) {
            scale = divide_rounded(127.0, max(bitcast<f32>(largest), 1e-5));
        }
    }
#if ints
    var sum = 0;
    for (var word = thread; word < params.stride; word += THREADS) {
        var packed = 0u;
        for (var e = 0u; e < 4u; e++) {
            let col = 4u * word + e;
            if (col < params.cols && !broken) {
                let q = i32(rounded(input_of(norm, col), scale));
                sum += q;
                packed |= (bitcast<u32>(q) & 255u) << (8u * e);
            }
        }
        acts[r * params.stride + word] = packed;
    }
    sum = reduce_sum(sum);
    if (thread == 0u) {
        quants[r] = vec2(select(bitcast<u32>(scale), NAN_BITS, broken), bitcast<u32>(sum));
    }
#else
    for (var col = thread; col < params.stride; col += THREADS) {
        var bits = 0u;
        if (col < params.cols) {
            var n = input_of(norm, col);
            if (params.int8 == 1u) {
                n = divide_rounded(rounded(n, scale), scale);
            }
            bits = select(bitcast<u32>(n), NAN_BITS, broken);
        }
        acts[r * params.stride + col] = bits;
    }
#endif
}
