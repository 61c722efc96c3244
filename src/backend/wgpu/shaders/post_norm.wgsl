#if form == "residual"
// ProjAdd to a normalised residual: x[r] = scale * (norm(x[r]) + norm(product[r])); the norm of the product
// is optional.
//
// A workgroup owns one row of the step (y). Reads x two or three times, depending on its norm, and the
// layer's product as often, or once without a norm.
#elif form == "product"
// ProjAdd with a normalised product: x[r] = scale * (x[r] + norm(product[r])); the norm is optional.
//
// A workgroup owns one row of the step (y). Reads the layer's product twice.
#else
// Norm of whole rows: x[r] = norm(x[r]).
//
// A workgroup owns one row of the step (y), and reads it twice.
#endif
#set reduce = [("reduce_wide", "vec2<f32>", "add_wide")]
#include "lib/main.wgsl"
#include "lib/floats.wgsl"
#include "lib/norm.wgsl"

struct Params {
    norm: Norm,
#if form == "residual"
    residual: Norm,
#endif
    cols: u32,
#if form != "rows"
    // Factor on the sum.
    scale: f32,
#endif
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> constants: array<f32>;
#if form == "rows"
@group(0) @binding(3) var<storage, read_write> x: array<f32>;
#else
@group(0) @binding(3) var<storage, read> product: array<f32>;
@group(0) @binding(4) var<storage, read_write> x: array<f32>;
#endif

var<private> row_at: u32;
#if form == "residual"

// True while `source` reads x, false while it reads the product.
var<private> of_x: bool;

fn source(i: u32) -> f32 {
    if (of_x) {
        return x[row_at + i];
    }
    return product[row_at + i];
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    row_at = workgroup.y * params.cols;
    of_x = true;
    let residual = norm_of(params.residual, params.cols);
    of_x = false;
    let norm = norm_of(params.norm, params.cols);
    for (var col = thread; col < params.cols; col += THREADS) {
        let kept = normed(params.residual, residual, x[row_at + col], col);
        x[row_at + col] = params.scale * (kept + normed(params.norm, norm, source(col), col));
    }
}
#elif form == "product"

fn source(i: u32) -> f32 {
    return product[row_at + i];
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    row_at = workgroup.y * params.cols;
    let norm = norm_of(params.norm, params.cols);
    for (var col = thread; col < params.cols; col += THREADS) {
        x[row_at + col] = params.scale * (x[row_at + col] + normed(params.norm, norm, source(col), col));
    }
}
#else

fn source(i: u32) -> f32 {
    return x[row_at + i];
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    row_at = workgroup.y * params.cols;
    let norm = norm_of(params.norm, params.cols);
    for (var col = thread; col < params.cols; col += THREADS) {
        x[row_at + col] = normed(params.norm, norm, x[row_at + col], col);
    }
}
#endif
