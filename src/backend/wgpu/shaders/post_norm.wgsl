// ProjAdd whose product is normed: x[r] += norm(product[r]).
//
// A workgroup owns one row of the step (y). Reads the product, which the layer has left, twice.
#set reduce = [("reduce_wide", "vec2<f32>", "add_wide")]
#include "lib/main.wgsl"
#include "lib/floats.wgsl"
#include "lib/norm.wgsl"

struct Params {
    norm: Norm,
    cols: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> constants: array<f32>;
@group(0) @binding(3) var<storage, read> product: array<f32>;
@group(0) @binding(4) var<storage, read_write> x: array<f32>;

var<private> row_at: u32;

fn source(i: u32) -> f32 {
    return product[row_at + i];
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    row_at = workgroup.y * params.cols;
    let norm = norm_of(params.norm, params.cols);
    for (var col = thread; col < params.cols; col += THREADS) {
        x[row_at + col] += normed(params.norm, norm, source(col), col);
    }
}
