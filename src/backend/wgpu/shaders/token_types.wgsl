// Embed with token types, after the other embeddings: x[r] += types[type[r]]. A thread owns one element of a
// row of the step (y).
#include "lib/main.wgsl"

struct Params {
    cols: u32,
    // Floats per row of types.
    stride: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> types: array<f32>;
@group(0) @binding(3) var<storage, read_write> x: array<f32>;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let col = workgroup.x * THREADS + thread;
    if (col < params.cols) {
        x[workgroup.y * params.cols + col] += types[row_type(workgroup.y) * params.stride + col];
    }
}
