// Activation functions, and the factor that `up` gives. Uses floats.wgsl.
const ACT_RELU2: u32 = 0u;
const ACT_GELU_TANH: u32 = 2u;
const TIMES: u32 = 3u;
// GPT-OSS: the gate stores m / (1 + exp(-1.702 m)), m = min(g, 7), and `up` multiplies by clamp(u, -7, 7) +
// 1.
const ACT_CLAMPED: u32 = 4u;
const TIMES_CLAMPED: u32 = 5u;
const ACT_GELU: u32 = 6u;

// `at_most` and `at_least` propagate NaN, which min and max may drop.
fn at_most(x: f32, most: f32) -> f32 {
    return select(x, most, x > most);
}

fn at_least(x: f32, least: f32) -> f32 {
    return select(x, least, x < least);
}

fn factor_of_up(times: u32, y: f32) -> f32 {
    return select(y, at_least(at_most(y, 7.0), -7.0) + 1.0, times == TIMES_CLAMPED);
}

fn activated(act: u32, x: f32) -> f32 {
    if (act == ACT_RELU2) {
        // max may drop NaN, which must be propagated.
        return select(x * x, 0.0, x < 0.0);
    }
    var kept = x;
    // SiLU.
    var exponent = -x;
    if (act == ACT_CLAMPED) {
        kept = at_most(x, 7.0);
        exponent = -1.702 * kept;
    } else if (act == ACT_GELU_TANH) {
        // 0.5 (1 + tanh u) is the logistic function of 2 u.
        exponent = -2.0 * 0.7978845608028654 * (x + 0.044715 * x * x * x);
    } else if (act == ACT_GELU) {
        exponent = -0.5 * x * x;
    }
    // A single call for all of them, because compilers inline it.
    let power = exp_near(exponent);
    if (act != ACT_GELU) {
        return kept / (1.0 + power);
    }
    // x / 2 erfc(-x / sqrt(2)), by Abramowitz and Stegun 7.1.26, with an error of erfc below 1.5e-7.
    let t = 1.0 / (1.0 + 0.3275911 * 0.70710678 * abs(x));
    let series = 0.2548296 + t * (-0.28449672 + t * (1.4214138 + t * (-1.4531521 + t * 1.0614054)));
    let half = 0.5 * series * t * power;
    return x * select(1.0 - half, half, x < 0.0);
}
