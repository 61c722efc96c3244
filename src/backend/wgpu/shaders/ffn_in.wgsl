// FfnIn: h[r] = act(Wg n) * (Wu n), or act(Wu n) where there is no gate. The gate's dispatch leaves act(Wg n), and up's
// multiplies it; without a gate, up's is the only one.
const ACT_RELU2: u32 = 0u;
const ACT_SILU: u32 = 1u;
const TIMES: u32 = 3u;

fn finish(at: u32, y: f32) {
    if (params.what == TIMES) {
        out[at] *= y;
    } else {
        out[at] = activated(params.what, y);
    }
}

fn activated(act: u32, x: f32) -> f32 {
    if (act == ACT_RELU2) {
        // max may drop NaN, which must stay.
        return select(x * x, 0.0, x < 0.0);
    }
    if (act == ACT_SILU) {
        return x / (1.0 + exp_near(-x));
    }
    let u = 0.7978845608028654 * (x + 0.044715 * x * x * x);
    // 0.5 (1 + tanh u) is the logistic function of 2 u.
    return x / (1.0 + exp_near(-2.0 * u));
}
