// Combine: makes the output of a stage from its products: out[r] = act(gate[r]) * y[r]; act(y[r]) without a
// gate; or out[r] += y[r]. Or applies a gate: out[r] = y[r] / (1 + exp(-gate[r])), or
// out[r] = y[r] * ln(1 + exp(gate[r])); or factors: out[r] = gate[r] * y[r]. An element of the gate may be
// for several columns.
//
// For stages whose layers have no common fused kernel: `logits` of each layer's type computes the products of
// the batch rows, or `experts` those of their slots. A thread owns some columns of a row: x = share of the
// columns, z = row.
#include "ffn_in.cuh"

// x / 2 erfc(-x / sqrt(2)), with erfc by Abramowitz and Stegun 7.1.26, whose error is at most 1.5e-7.
DEVICE float gelu(float x) {
    float z = fabsf(x) * 0.70710678118654752f, t = 1.0f / (1.0f + 0.3275911f * z);
    float series = 1.0614054f;
    series = series * t - 1.4531521f;
    series = series * t + 1.4214138f;
    series = series * t - 0.28449672f;
    series = series * t + 0.2548296f;
    float half = 0.5f * series * t * expf(-z * z);
    return x * (x < 0.0f ? half : 1.0f - half);
}

// positive x^2 + beta x above 0, else negative (exp(min(x, eps)) - 1 - x) + beta x.
DEVICE float xielu(const CombineParams& p, float x) {
    float curve = x > 0.0f ? p.positive * x * x : (expm1f(x > p.eps ? p.eps : x) - x) * p.negative;
    return curve + p.beta * x;
}

KERNEL(combine, CombineParams, COMBINE_THREADS) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t r = blockIdx.z;
    if (r >= p.step.counts->rows * p.each) return;
    for (uint32_t col = blockIdx.x * blockDim.x + threadIdx.x; col < p.cols; col += gridDim.x * blockDim.x) {
        uint64_t at = uint64_t(r) * p.cols + col, of_gate = at;
        if (p.run != 1) of_gate = uint64_t(r) * (p.cols / p.run) + col / p.run;
        // All loads are issued before the first is waited for.
        float y = p.y[at], gate = p.gate ? p.gate[of_gate] : 0.0f;
        float there = p.add ? p.out[at] : 0.0f;
        if (p.act == ACT_GATE) {
            y /= 1.0f + expf(-gate);
        } else if (p.act == ACT_SOFTPLUS) {
            y *= gate > 20.0f ? gate : log1pf(expf(gate));
        } else if (p.act == ACT_TIMES) {
            y *= gate;
        } else if (p.act == ACT_GELU) {
            y = p.gate ? gelu(gate) * y : gelu(y);
        } else if (p.act == ACT_XIELU) {
            y = p.gate ? xielu(p, gate) * y : xielu(p, y);
        } else if (p.act != ACT_NONE) {
            y = p.gate ? gated(p.act, gate, y) : activated(p.act, y);
        }
        p.out[at] = p.add ? there + y : y;
    }
}
