#if part == "split"
// AttnIn with a gate, after the products: separates each head's query from its part of the gate, which
// follows it, into two buffers. A thread owns one element of a row (y).
#else
// Multiplies by a gate: x[r] = x[r] / (1 + exp(-gate[r])), with one gate element per element of x, or one per
// row; or x[r] = x[r] * gate[r]. A thread owns one element of a row (y).
#endif
#include "lib/main.wgsl"
#include "lib/floats.wgsl"

struct Params {
    cols: u32,
#if part == "split"
    head_dim: u32,
    // Element of `fresh` at which the interleaved rows begin.
    from_at: u32,
#endif
}

@group(0) @binding(0) var<uniform> params: Params;
#if part == "split"
@group(0) @binding(2) var<storage, read> fresh: array<f32>;
@group(0) @binding(3) var<storage, read_write> q: array<f32>;
@group(0) @binding(4) var<storage, read_write> gate: array<f32>;
#else
@group(0) @binding(2) var<storage, read> gate: array<f32>;
@group(0) @binding(3) var<storage, read_write> x: array<f32>;
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
#else
    x[at] /= 1.0 + exp_near(-gate[at]);
#endif
}
