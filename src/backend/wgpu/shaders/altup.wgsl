#if part == "predict"
// AltUpPredict, one stream j: out[r] = x[j][r] + sum over i of m[4 j + i] x[i][r], with m = W tanh(c[r]). A
// thread owns one element (x) of a row of the step (y).
#elif part == "correct"
// AltUpCorrect, a stream j that is not the active one: x[r] = own[r] + (1 + m[j]) (y[r] - active[r]), with
// m = W tanh(c[r]) and the predicted streams `own` and `active`. A thread owns one element (x) of a row of
// the step (y).
#elif part == "active"
// AltUpCorrect, the active stream j: x[r] = active[r] + (1 + m[j]) (y[r] - active[r]), with m = W tanh(c[r]),
// and scaled[r] = factors x[r]. A thread owns one element (x) of a row of the step (y).
#else
// Rescale: y[r] = y[r] sqrt(mean(like[r]^2)) / sqrt(max(mean(y[r]^2), floor)), for three buffers y; part
// `mean` also writes the mean of all four. A workgroup owns one row of the step (y), and reads it twice.
#endif
#set of_rows = part == "rescale" or part == "mean"
#if of_rows
#set reduce = [("reduce_wide", "vec2<f32>", "add_wide")]
#endif
#include "lib/main.wgsl"
#include "lib/floats.wgsl"

struct Params {
    cols: u32,
#if of_rows
    least: f32,
#else
    // Index in constants of the stream's rows of W.
    w: u32,
#endif
#if part == "active"
    // Index in constants.
    factors: u32,
#elif part == "predict"
    stream: u32,
#endif
}

@group(0) @binding(0) var<uniform> params: Params;
#if of_rows
@group(0) @binding(2) var<storage, read> like: array<f32>;
@group(0) @binding(3) var<storage, read_write> y0: array<f32>;
@group(0) @binding(4) var<storage, read_write> y1: array<f32>;
@group(0) @binding(5) var<storage, read_write> y2: array<f32>;
#if part == "mean"
@group(0) @binding(6) var<storage, read_write> mean: array<f32>;
#endif

// Mean of the squares of this thread's share of a row, over all threads.
fn mean_square(sum: vec2<f32>) -> vec2<f32> {
    return divide_wide(reduce_wide(sum), f32(params.cols));
}

// 1 over the magnitude of a row.
fn inverse(square: vec2<f32>) -> f32 {
    return reciprocal_root(select(square, vec2(params.least, 0.0), square.x < params.least));
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let first = workgroup.y * params.cols;
    var all = vec2(0.0, 0.0);
    var all0 = vec2(0.0, 0.0);
    var all1 = vec2(0.0, 0.0);
    var all2 = vec2(0.0, 0.0);
    for (var col = thread; col < params.cols; col += THREADS) {
        all = add_square(all, like[first + col]);
        all0 = add_square(all0, y0[first + col]);
        all1 = add_square(all1, y1[first + col]);
        all2 = add_square(all2, y2[first + col]);
    }
    let want = sqrt(mean_square(all).x);
    let by = want * vec3(inverse(mean_square(all0)), inverse(mean_square(all1)), inverse(mean_square(all2)));
    // A thread writes only elements that no other one reads.
    for (var col = thread; col < params.cols; col += THREADS) {
        let at = first + col;
        let y = by * vec3(y0[at], y1[at], y2[at]);
        y0[at] = y.x;
        y1[at] = y.y;
        y2[at] = y.z;
#if part == "mean"
        mean[at] = 0.25 * (((like[at] + y.x) + y.y) + y.z);
#endif
    }
}
#else
@group(0) @binding(2) var<storage, read> constants: array<f32>;
@group(0) @binding(3) var<storage, read> c: array<f32>;
#if part == "predict"
@group(0) @binding(4) var<storage, read> x0: array<f32>;
@group(0) @binding(5) var<storage, read> x1: array<f32>;
@group(0) @binding(6) var<storage, read> x2: array<f32>;
@group(0) @binding(7) var<storage, read> x3: array<f32>;
@group(0) @binding(8) var<storage, read_write> out: array<f32>;
#elif part == "correct"
@group(0) @binding(4) var<storage, read> y: array<f32>;
@group(0) @binding(5) var<storage, read> of_active: array<f32>;
@group(0) @binding(6) var<storage, read> own: array<f32>;
@group(0) @binding(7) var<storage, read_write> x: array<f32>;
#else
@group(0) @binding(4) var<storage, read> y: array<f32>;
@group(0) @binding(5) var<storage, read> of_active: array<f32>;
@group(0) @binding(6) var<storage, read_write> x: array<f32>;
@group(0) @binding(7) var<storage, read_write> scaled: array<f32>;
#endif

// A row of W, from its index in constants, times tanh(c).
fn product(at: u32, c: vec4<f32>) -> f32 {
    let w = vec4(constants[at], constants[at + 1u], constants[at + 2u], constants[at + 3u]);
    return w.x * c.x + w.y * c.y + w.z * c.z + w.w * c.w;
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let col = workgroup.x * THREADS + thread;
    if (col >= params.cols) {
        return;
    }
    let r = 4u * workgroup.y;
    let of_row = vec4(tanh_near(c[r]), tanh_near(c[r + 1u]), tanh_near(c[r + 2u]), tanh_near(c[r + 3u]));
    let at = workgroup.y * params.cols + col;
#if part == "predict"
    let all = vec4(x0[at], x1[at], x2[at], x3[at]);
    var sum = all.x;
    if (params.stream == 1u) {
        sum = all.y;
    } else if (params.stream == 2u) {
        sum = all.z;
    } else if (params.stream == 3u) {
        sum = all.w;
    }
    sum += product(params.w, of_row) * all.x;
    sum += product(params.w + 4u, of_row) * all.y;
    sum += product(params.w + 8u, of_row) * all.z;
    sum += product(params.w + 12u, of_row) * all.w;
    out[at] = sum;
#elif part == "correct"
    x[at] = own[at] + (1.0 + product(params.w, of_row)) * (y[at] - of_active[at]);
#else
    let corrected = of_active[at] + (1.0 + product(params.w, of_row)) * (y[at] - of_active[at]);
    x[at] = corrected;
    scaled[at] = constants[params.factors + col] * corrected;
#endif
}
#endif
