// The last step of products that adapters change: what the epilogue of linear.wgsl does otherwise. A thread
// owns one element, a row of workgroups (y) one row of the step, or of its slots of experts.
#include "lib/main.wgsl"
#include "lib/floats.wgsl"

struct Params {
    cols: u32,
    // Its activation function, or the bits of the soft cap.
    what: u32,
    // The factor that `up` gives.
    times: u32,
    unused: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
#if part == "gate"
@group(0) @binding(2) var<storage, read> up: array<f32>;
@group(0) @binding(3) var<storage, read_write> h: array<f32>;
#else
@group(0) @binding(2) var<storage, read_write> h: array<f32>;
#endif
#if part != "cap"
#include "lib/activation.wgsl"
#endif

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let col = workgroup.x * THREADS + thread;
    if (col >= params.cols) {
        return;
    }
    let at = workgroup.y * params.cols + col;
#if part == "gate"
    // h = act(h) * up.
    h[at] = activated(params.what, h[at]) * factor_of_up(params.times, up[at]);
#elif part == "act"
    h[at] = activated(params.what, h[at]);
#else
    // h = cap tanh(h / cap).
    let cap = bitcast<f32>(params.what);
    h[at] = cap * tanh_near(divide_rounded(h[at], cap));
#endif
}
