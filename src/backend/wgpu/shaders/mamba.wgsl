#if part == "gate"
// Mamba, after the recurrence: the gate and the norm. A workgroup owns a group of heads (x) of a row (y).
#else
// Mamba: the recurrence of a Mamba-2 layer, as defined by Stage::Mamba.
//
// A workgroup owns a head (x) of a run of rows of one sequence (y), and a thread some columns of its matrix
// S. A row writes S to its own slot, if it has one, or else to the slot of the last row; the next one reads
// it there.
#endif
#if part == "gate"
#set reduce = [("reduce_wide", "vec2<f32>", "add_wide")]
#endif
#include "lib/main.wgsl"
#include "lib/floats.wgsl"
#if part == "gate"
#include "lib/norm.wgsl"
#else
struct Norm {
    kind: u32,
    weight: u32,
    bias: u32,
    eps: f32,
}
#endif

struct Params {
    norm: Norm,
    n_heads: u32,
    n_groups: u32,
    head_dim: u32,
    key_dim: u32,
    // Indices into constants.
    decay: u32,
    dt: u32,
    skip: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> constants: array<f32>;
#if part == "gate"
// [rows, n_heads, head_dim]
@group(0) @binding(3) var<storage, read> z: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

var<private> first: u32;

fn source(i: u32) -> f32 {
    return out[first + i];
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let values = params.n_heads * params.head_dim;
    let len = values / params.n_groups;
    let of_group = workgroup.x * len;
    first = workgroup.y * values + of_group;
    // A thread reads only elements that it has written itself.
    for (var i = thread; i < len; i += THREADS) {
        let gate = z[first + i];
        out[first + i] *= gate / (1.0 + exp_near(-gate));
    }
    let norm = norm_of(params.norm, len);
    for (var i = thread; i < len; i += THREADS) {
        out[first + i] = normed(params.norm, norm, out[first + i], of_group + i);
    }
}
#else
// [rows, channels]: the values of all heads, then the keys of all groups, then their queries.
@group(0) @binding(3) var<storage, read> c: array<f32>;
// [rows, n_heads]
@group(0) @binding(4) var<storage, read> a: array<f32>;
// [slots, n_heads, elements of keys, elements of values]
@group(0) @binding(5) var<storage, read_write> states: array<f32>;
// [rows, n_heads, head_dim]
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

const NO_STATE: u32 = 0xffffffffu;

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

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let run = step_run(workgroup.y);
    let head = workgroup.x;
    let group = head / (params.n_heads / params.n_groups);
    let values = params.n_heads * params.head_dim;
    let channels = values + 2u * params.n_groups * params.key_dim;
    let of_head = params.key_dim * params.head_dim;
    var origin = (run.origin * params.n_heads + head) * of_head;
    var is_empty = run.origin == NO_STATE;
    for (var i = 0u; i < run.rows; i++) {
        let row = run.first + i;
        let to = (state_after(run, i) * params.n_heads + head) * of_head;
        let size = softplus(a[row * params.n_heads + head] + constants[params.dt + head]);
        let decay = exp_near(constants[params.decay + head] * size);
        let keys = row * channels + values + group * params.key_dim;
        let queries = keys + params.n_groups * params.key_dim;
        for (var col = thread; col < params.head_dim; col += THREADS) {
            let x = c[row * channels + head * params.head_dim + col];
            let write = size * x;
            var sum = constants[params.skip + head] * x;
            for (var e = 0u; e < params.key_dim; e++) {
                var s = write * c[keys + e];
                if (!is_empty) {
                    s += decay * states[origin + e * params.head_dim + col];
                }
                states[to + e * params.head_dim + col] = s;
                sum += s * c[queries + e];
            }
            out[row * values + head * params.head_dim + col] = sum;
        }
        // A thread reads only the columns that it has written itself.
        origin = to;
        is_empty = false;
    }
}
#endif
