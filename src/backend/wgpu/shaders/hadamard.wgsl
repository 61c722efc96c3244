// Hadamard rotation: rows of a buffer, normalised and rotated into a basis, or rotated back out of one, as
// defined by sterna_program::Basis. Without signs and with blocks of one element, rows are only normalised.
//
// A workgroup owns a span of a row, made of whole blocks (x), and computes the norm of the whole row (y).
#set reduce = [("reduce_wide", "vec2<f32>", "add_wide")]
#include "lib/main.wgsl"
#include "lib/floats.wgsl"
#include "lib/norm.wgsl"

struct Params {
    norm: Norm,
    cols: u32,
    block: u32,
    span: u32,
    // 1 / sqrt(block)
    factor: f32,
    // Offset of the basis in signs, or ABSENT.
    signs_at: u32,
    of_outputs: u32,
    back: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> constants: array<f32>;
@group(0) @binding(3) var<storage, read> signs: array<f32>;
@group(0) @binding(4) var<storage, read> x: array<f32>;
@group(0) @binding(5) var<storage, read_write> rotated: array<f32>;

var<workgroup> runs: array<f32, #{most_span}>;

var<private> row_at: u32;

fn source(i: u32) -> f32 {
    return x[row_at + i];
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    var row = workgroup.y;
    if (params.of_outputs == 1u) {
        row = output_row(row);
    }
    row_at = row * params.cols;
    let begin = workgroup.x * params.span;
    let norm = norm_of(params.norm, params.cols);
    for (var i = thread; i < params.span; i += THREADS) {
        let col = begin + i;
        var n = 0.0;
        if (col < params.cols) {
            n = normed(params.norm, norm, source(col), col);
            if (params.back == 0u && params.signs_at != ABSENT) {
                n *= signs[params.signs_at + col];
            }
        }
        runs[i] = n;
    }
    // Butterflies: the first of two columns `apart` becomes their sum, the second their difference.
    for (var apart = 1u; apart < params.block; apart *= 2u) {
        workgroupBarrier();
        for (var pair = thread; 2u * pair < params.span; pair += THREADS) {
            let first = 2u * pair - pair % apart;
            let sum = runs[first] + runs[first + apart];
            runs[first + apart] = runs[first] - runs[first + apart];
            runs[first] = sum;
        }
    }
    workgroupBarrier();
    for (var i = thread; i < min(params.span, params.cols - begin); i += THREADS) {
        var y = runs[i] * params.factor;
        if (params.back == 1u) {
            y *= signs[params.signs_at + begin + i];
        }
        rotated[row_at + begin + i] = y;
    }
}
