// The input of linear layers that apply the factor of an RMS norm to their products: rows of floats times the
// norm's weight, and the factor of each row.
//
// A workgroup owns one row. quants has (factor, 0) of each row. Reads and writes a row once.
#set lanes_type = "f32"
#set reduce_lanes = [("sum_of_lanes", "sum")]
#include "lib/main.wgsl"
#include "lib/squares.wgsl"

struct Params {
    // Vectors of four elements per row.
    quads: u32,
    of_outputs: u32,
    // Index of the norm's weight in norms.
    norm_at: u32,
    norm_eps: f32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> norms: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> acts: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> quants: array<vec2<u32>>;

var<private> row_at: u32;

fn row_quad(i: u32) -> vec4<f32> {
    return x[row_at + i];
}

fn sum(a: f32, b: f32) -> f32 {
    return a + b;
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let r = workgroup.y;
    var source_row = r;
    if (params.of_outputs == 1u) {
        source_row = output_row(r);
    }
    row_at = source_row * params.quads;
    add_squares(params.quads);
    workgroupBarrier();
    let factor = norm_factor(params.quads, params.norm_eps);
    if (thread == 0u) {
        quants[r] = vec2(bitcast<u32>(factor), 0u);
    }
    for (var i = thread; i < params.quads; i += THREADS) {
        acts[r * params.quads + i] = row_quad(i) * norms[params.norm_at + i];
    }
}
