// What remains of a gate above a cutoff: gate[r] = max(gate[r] - (mean + cutoff * standard deviation), 0),
// over the elements of the row; then its activation function, unless adapters change `up` first.
//
// A workgroup owns one row of the step (y), and reads it three times.
#set reduce = [("reduce_wide", "vec2<f32>", "add_wide")]
#include "lib/main.wgsl"
#include "lib/floats.wgsl"
#include "lib/activation.wgsl"

const ABSENT: u32 = 0xffffffffu;

struct Params {
    cols: u32,
    cutoff: f32,
    // The activation function, or ABSENT.
    act: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read_write> gate: array<f32>;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let first = workgroup.y * params.cols;
    let len = f32(params.cols);
    var sum = vec2(0.0, 0.0);
    for (var col = thread; col < params.cols; col += THREADS) {
        sum = add_wide(sum, vec2(gate[first + col], 0.0));
    }
    let mean = divide_wide(reduce_wide(sum), len).x;
    var squares = vec2(0.0, 0.0);
    for (var col = thread; col < params.cols; col += THREADS) {
        squares = add_square(squares, gate[first + col] - mean);
    }
    let bound = mean + params.cutoff * sqrt(divide_wide(reduce_wide(squares), len).x);
    for (var col = thread; col < params.cols; col += THREADS) {
        // Unlike max, it propagates NaN.
        let above = at_least(gate[first + col] - bound, 0.0);
        if (params.act == ABSENT) {
            gate[first + col] = above;
        } else {
            gate[first + col] = activated(params.act, above);
        }
    }
}
