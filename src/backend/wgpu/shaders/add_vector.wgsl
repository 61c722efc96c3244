// AddVector: x[r] += v. A thread owns one element (x) of a row of the step (y).
#include "lib/main.wgsl"

struct Params {
    cols: u32,
    // Index of the vector in constants.
    at: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> constants: array<f32>;
@group(0) @binding(3) var<storage, read_write> x: array<f32>;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let col = workgroup.x * THREADS + thread;
    if (col < params.cols) {
        x[workgroup.y * params.cols + col] += constants[params.at + col];
    }
}
