#if part == "tail"
// Conv, after its rows: saves the last rows of each run as the convolution's history. A thread owns one
// channel (x) of a run (y).
#else
// Conv: a convolution per channel over the rows of a sequence, with gates, as defined by Stage::Conv. A
// thread owns one channel (x) of a row (y).
#endif
#include "lib/main.wgsl"
#include "lib/floats.wgsl"

struct Params {
    channels: u32,
    taps: u32,
    // Offset of the tails in `states`.
    tails_at: u32,
    // Indices into constants.
    w: u32,
    bias: u32,
    // 1 if they are there.
    has_before: u32,
    has_after: u32,
    has_bias: u32,
    silu: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> constants: array<f32>;
// [rows, channels] each; `before` and `after` may be absent.
@group(0) @binding(3) var<storage, read> u: array<f32>;
@group(0) @binding(4) var<storage, read> before: array<f32>;
@group(0) @binding(5) var<storage, read> after: array<f32>;
#if part == "tail"
// [slots, taps - 1, channels]
@group(0) @binding(6) var<storage, read_write> states: array<f32>;
#else
@group(0) @binding(6) var<storage, read> states: array<f32>;
// [rows, channels]
@group(0) @binding(7) var<storage, read_write> out: array<f32>;
#endif

const NO_STATE: u32 = 0xffffffffu;

// Input of the convolution: rows of the run from taps - 1 on, and before them the saved history.
fn seen(run: Run, at: u32, channel: u32) -> f32 {
    let kept = params.taps - 1u;
    if (at >= kept) {
        let i = (run.first + at - kept) * params.channels + channel;
        if (params.has_before == 1u) {
            return before[i] * u[i];
        }
        return u[i];
    }
    if (run.origin == NO_STATE) {
        return 0.0;
    }
    return states[params.tails_at + (run.origin * kept + at) * params.channels + channel];
}

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let channel = workgroup.x * THREADS + thread;
    if (channel >= params.channels) {
        return;
    }
#if part == "tail"
    let run = step_run(workgroup.y);
    let kept = params.taps - 1u;
    // The last row comes last: its slot may be the one that is read. The oldest history first, so that each
    // row is moved before it is overwritten.
    for (var i = 0u; i <= run.n_kept; i++) {
        let row = select(run.first_kept + i, run.rows - 1u, i == run.n_kept);
        let to = state_after(run, row);
        for (var j = 0u; j < kept; j++) {
            let x = seen(run, row + 1u + j, channel);
            states[params.tails_at + (to * kept + j) * params.channels + channel] = x;
        }
    }
#else
    let row = workgroup.y;
    var at = 0u;
    var run = step_run(at);
    while (row >= run.first + run.rows) {
        at++;
        run = step_run(at);
    }
    var sum = 0.0;
    if (params.has_bias == 1u) {
        sum = constants[params.bias + channel];
    }
    for (var j = 0u; j < params.taps; j++) {
        sum += constants[params.w + channel * params.taps + j] * seen(run, row - run.first + j, channel);
    }
    if (params.silu == 1u) {
        sum = sum / (1.0 + exp_near(-sum));
    }
    let i = row * params.channels + channel;
    if (params.has_after == 1u) {
        sum *= after[i];
    }
    out[i] = sum;
#endif
}
