#if part == "split"
// AttnIn with a gate, after the products: separates each head's query from its part of the gate, which
// follows it, into two buffers. A thread owns one element of a row (y).
#elif part == "xielu"
// The activation function xIELU, in place: x = p x^2 + beta x above 0, else
// x = n (exp(min(x, eps)) - 1 - x) + beta x. A thread owns one element of a row (y).
#else
// Multiplies by a gate: x[r] = x[r] / (1 + exp(-gate[r])), with one gate element per element of x, or one per
// row; or x[r] = x[r] * gate[r]; or x[r] = x[r] * ln(1 + exp(gate[r])), with one gate element per `each`
// elements of x. A thread owns one element of a row (y).
#endif
#include "lib/main.wgsl"
#include "lib/floats.wgsl"

struct Params {
    cols: u32,
#if part == "split"
    head_dim: u32,
    // Element of `fresh` at which the interleaved rows begin.
    from_at: u32,
#elif part == "softplus"
    // Elements of x per element of the gate.
    each: u32,
#elif part == "xielu"
    positive: f32,
    negative: f32,
    beta: f32,
    eps: f32,
#endif
}

@group(0) @binding(0) var<uniform> params: Params;
#if part == "split"
@group(0) @binding(2) var<storage, read> fresh: array<f32>;
@group(0) @binding(3) var<storage, read_write> q: array<f32>;
@group(0) @binding(4) var<storage, read_write> gate: array<f32>;
#elif part == "xielu"
@group(0) @binding(2) var<storage, read_write> x: array<f32>;
#else
@group(0) @binding(2) var<storage, read> gate: array<f32>;
@group(0) @binding(3) var<storage, read_write> x: array<f32>;
#endif

#if part == "softplus"
fn softplus(x: f32) -> f32 {
    if (x > 20.0) {
        return x;
    }
    let y = exp_near(x);
    // Below this, 1 + y loses most bits of y.
    if (y < 0.03) {
        return y * (1.0 - y * (0.5 - y * (0.333333333 - y * 0.25)));
    }
    return log(1.0 + y);
}
#endif

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let col = workgroup.x * THREADS + thread;
    if (col >= params.cols) {
        return;
    }
    let at = workgroup.y * params.cols + col;
#if part == "split"
    let head = at / params.head_dim;
    let from_at = params.from_at + head * 2u * params.head_dim + col % params.head_dim;
    q[at] = fresh[from_at];
    gate[at] = fresh[from_at + params.head_dim];
#elif part == "share"
    x[at] /= 1.0 + exp_near(-gate[workgroup.y]);
#elif part == "itself"
    x[at] *= gate[at];
#elif part == "softplus"
    x[at] *= softplus(gate[at / params.each]);
#elif part == "xielu"
    let u = x[at];
    var curve = params.positive * u * u;
    if (u <= 0.0) {
        curve = (exp_near(min(u, params.eps)) - 1.0 - u) * params.negative;
    }
    x[at] = curve + params.beta * u;
#else
    x[at] /= 1.0 + exp_near(-gate[at]);
#endif
}
