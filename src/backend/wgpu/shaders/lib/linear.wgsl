// y = scale (W a) + bias for rows of activations, which input.wgsl has left; what becomes of y is `finish`, the stage's.
//
// Reads a part of W once for every ROWS rows of the step; bytes of W are as types/ says.
struct Params {
    w: Matrix,
    // Vectors of four words that a row of acts has.
    stride: u32,
    of_outputs: u32,
    factor: f32,
    // Place in constants, or ABSENT.
    bias: u32,
    out_cols: u32,
    out_at: u32,
    // The stage's own.
    what: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> constants: array<f32>;
@group(0) @binding(3) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> acts: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> quants: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

const ABSENT: u32 = 0xffffffffu;

fn n_rows() -> u32 {
    if (params.of_outputs == 1u) {
        return step_outputs();
    }
    return step_rows();
}

fn finished(sum: Acc, row: u32, r: u32) {
    var y = scaled(sum, r) * params.factor;
    let of_weight = params.w.first_row + row;
    if (params.bias != ABSENT) {
        y += constants[params.bias + of_weight];
    }
    finish(params.out_at + r * params.out_cols + of_weight, y);
}
