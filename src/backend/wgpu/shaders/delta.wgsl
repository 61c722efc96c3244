#if part == "tail"
// Delta, after the recurrence: saves the last rows of each run as the convolution's history. A thread owns
// one channel (x) of a run (y).
#else
// Delta: the convolution, the recurrence and the gated norm of a delta net, as defined by Stage::Delta.
//
// A workgroup owns a head (x) of a run of rows of one sequence (y), and a thread some columns of its matrix
// S, whose elements it loads 16 at a time. A row writes S to its own slot, if it has one, or else to the slot
// of the last row; the next one reads it there.
#endif
#set reduce = [("reduce_wide", "vec2<f32>", "add_wide")]
#include "lib/main.wgsl"
#include "lib/floats.wgsl"
#include "lib/norm.wgsl"

struct Params {
    norm: Norm,
    n_heads: u32,
    n_key_heads: u32,
    head_dim: u32,
    taps: u32,
    // Indices into constants.
    conv: u32,
    decay: u32,
    dt: u32,
    eps: f32,
    // Offset of the tails in `states`, after all matrices.
    tails_at: u32,
    // 1 if heads of `out` that share a key are neighbours.
    grouped: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> constants: array<f32>;
// [rows, channels]
@group(0) @binding(3) var<storage, read> u: array<f32>;
#if part == "tail"
@group(0) @binding(4) var<storage, read_write> states: array<f32>;
#else
// [rows, n_heads, head_dim]
@group(0) @binding(4) var<storage, read> z: array<f32>;
// [rows, n_heads] each.
@group(0) @binding(5) var<storage, read> a: array<f32>;
@group(0) @binding(6) var<storage, read> b: array<f32>;
// [slots, n_heads, elements of keys, elements of values], then [slots, taps - 1, channels].
@group(0) @binding(7) var<storage, read_write> states: array<f32>;
// [rows, n_heads, head_dim]
@group(0) @binding(8) var<storage, read_write> out: array<f32>;

var<workgroup> query: array<f32, MAX_HEAD_DIM>;
var<workgroup> key: array<f32, MAX_HEAD_DIM>;
var<workgroup> output: array<f32, MAX_HEAD_DIM>;
#endif

const MAX_HEAD_DIM: u32 = #{most_head_dim}u;
const NO_STATE: u32 = 0xffffffffu;

var<private> run: Run;

fn channels() -> u32 {
    return (2u * params.n_key_heads + params.n_heads) * params.head_dim;
}

// Input of the convolution: rows of the run from taps - 1 on, and before them the saved history.
fn seen(at: u32, channel: u32) -> f32 {
    let kept = params.taps - 1u;
    if (at >= kept) {
        return u[(run.first + at - kept) * channels() + channel];
    }
    if (run.origin == NO_STATE) {
        return 0.0;
    }
    return states[params.tails_at + (run.origin * kept + at) * channels() + channel];
}

#if part == "tail"
fn source(i: u32) -> f32 {
    return 0.0;
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    run = step_run(workgroup.y);
    let channel = workgroup.x * THREADS + thread;
    if (channel >= channels()) {
        return;
    }
    let kept = params.taps - 1u;
    // The last row comes last: its slot may be the one that is read. The oldest history first, so that each
    // row is moved before it is overwritten.
    for (var i = 0u; i <= run.n_kept; i++) {
        let row = select(run.first_kept + i, run.rows - 1u, i == run.n_kept);
        let to = state_after(run, row);
        for (var j = 0u; j < kept; j++) {
            let x = seen(row + 1u + j, channel);
            states[params.tails_at + (to * kept + j) * channels() + channel] = x;
        }
    }
}
#else
fn source(i: u32) -> f32 {
    return output[i];
}

fn logistic(x: f32) -> f32 {
    return 1.0 / (1.0 + exp_near(-x));
}

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

// SiLU of the convolution at row i of the run.
fn convolved(i: u32, channel: u32) -> f32 {
    var sum = 0.0;
    for (var j = 0u; j < params.taps; j++) {
        sum += constants[params.conv + channel * params.taps + j] * seen(i + j, channel);
    }
    return sum * logistic(sum);
}

// 1 / sqrt(sum of squares + eps), where `squares` is this thread's part of the sum.
fn by_length(squares: vec2<f32>) -> f32 {
    return reciprocal_root(add_wide(reduce_wide(squares), vec2(params.eps, 0.0)));
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    run = step_run(workgroup.y);
    let n = params.head_dim;
    let head = workgroup.x;
    let key_head = head % params.n_key_heads;
    var of_out = head;
    if (params.grouped == 1u) {
        of_out = key_head * (params.n_heads / params.n_key_heads) + head / params.n_key_heads;
    }
    var origin = (run.origin * params.n_heads + head) * n * n;
    var is_empty = run.origin == NO_STATE;
    for (var i = 0u; i < run.rows; i++) {
        let row = run.first + i;
        let to = (state_after(run, i) * params.n_heads + head) * n * n;
        var of_query = vec2(0.0, 0.0);
        var of_key = vec2(0.0, 0.0);
        for (var e = thread; e < n; e += THREADS) {
            query[e] = convolved(i, key_head * n + e);
            key[e] = convolved(i, (params.n_key_heads + key_head) * n + e);
            of_query = add_square(of_query, query[e]);
            of_key = add_square(of_key, key[e]);
        }
        let by_query = by_length(of_query) / sqrt(f32(n));
        let by_key = by_length(of_key);
        let soft = softplus(a[row * params.n_heads + head] + constants[params.dt + head]);
        let decay = exp_near(constants[params.decay + head] * soft);
        let strength = logistic(b[row * params.n_heads + head]);
        for (var col = thread; col < n; col += THREADS) {
            let value = convolved(i, (2u * params.n_key_heads + head) * n + col);
            var predicted = 0.0;
            if (!is_empty) {
                for (var e = 0u; e < n; e += #{n_at_once}u) {
                    let at = origin + e * n + col;
#for i in at_once
                    let before_#{i} = states[at + #{i}u * n];
#endfor
#for i in at_once
                    predicted += before_#{i} * key[e + #{i}u];
#endfor
                }
            }
            let write = strength * (value - decay * (predicted * by_key)) * by_key;
            var sum = 0.0;
            for (var e = 0u; e < n; e += #{n_at_once}u) {
#for i in at_once
                var s_#{i} = key[e + #{i}u] * write;
#endfor
                if (!is_empty) {
                    let at = origin + e * n + col;
#for i in at_once
                    let before_#{i} = states[at + #{i}u * n];
#endfor
#for i in at_once
                    s_#{i} += decay * before_#{i};
#endfor
                }
#for i in at_once
                states[to + (e + #{i}u) * n + col] = s_#{i};
                sum += s_#{i} * query[e + #{i}u];
#endfor
            }
            output[col] = sum * by_query;
        }
        workgroupBarrier();
        let norm = norm_of(params.norm, n);
        for (var col = thread; col < n; col += THREADS) {
            let gate = z[(row * params.n_heads + head) * n + col];
            let y = normed(params.norm, norm, output[col], col);
            out[(row * params.n_heads + of_out) * n + col] = y * (gate * logistic(gate));
        }
        origin = to;
        is_empty = false;
        workgroupBarrier();
    }
}
#endif
