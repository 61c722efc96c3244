// FfnIn: n = norm(x[r]); h[r] = act(Wg n) * (Wu n), or act(Wu n) without a gate. Clamped SwiGLU of a gate g
// and u = Wu n is m / (1 + exp(-1.702 m)) * (clamp(u, -7, 7) + 1) with m = min(g, 7).
//
// With a gate, the first half of a warp's slots own rows of the gate and the second half the same rows of up,
// so that the two products meet in a warp; without one, a slot owns a row of up. Requires at least two slots
// per warp.
#pragma once

#include "../lib/linear_codes.cuh"
#include "../lib/linear_mma.cuh"

DEVICE float activated(uint32_t act, float x) {
    if (act == ACT_RELU2) {
        float positive = fmaxf(x, 0.0f);
        // fmaxf drops NaN, which must be kept.
        return x != x ? x : positive * positive;
    }
    // The others are x times a logistic function, computed in one place because kernels contain many copies
    // of it.
    float by = -x;
    if (act == ACT_CLAMPED_SWIGLU) by = -1.702f * x;
    // 0.5 (1 + tanh u) is the logistic function of 2 u.
    if (act == ACT_GELU_TANH) by = -2.0f * (0.7978845608028654f * (x + 0.044715f * x * x * x));
    return x / (1.0f + expf(by));
}

// Applies a gate to the up projection. Clamping keeps NaN.
DEVICE float gated(uint32_t act, float gate, float up) {
    if (act == ACT_CLAMPED_SWIGLU) {
        gate = gate > 7.0f ? 7.0f : gate;
        up = (up > 7.0f ? 7.0f : up < -7.0f ? -7.0f : up) + 1.0f;
    }
    return up * activated(act, gate);
}

struct FfnInTask {
    const FfnInParams& p;

    DEVICE uint32_t slots() const { return kWarpSize >> p.in.lanes_log2; }
    // Outputs per unit.
    DEVICE uint32_t width() const { return p.gate.data ? slots() / 2 : slots(); }
    DEVICE uint32_t units() const { return (p.up.rows + width() - 1) / width(); }

    DEVICE WeightRow row(uint32_t unit, uint32_t slot) const {
        bool of_gate = p.gate.data && slot < width();
        uint32_t row = unit * width() + slot % width();
        return {of_gate, row < p.up.rows ? row : WeightRow::kNone};
    }
    DEVICE LinearParams weight(uint32_t of_gate) const {
        LinearParams w = select(of_gate, p.gate, p.up);
        // The gate has the same number of rows.
        w.rows = p.up.rows;
        return w;
    }

    struct Around {};
    DEVICE Around around(uint32_t, uint32_t, uint32_t, const StepRow&) const { return {}; }
    DEVICE Around late(uint32_t, uint32_t, uint32_t, const StepRow&) const { return {}; }
    DEVICE void finish(uint32_t unit, uint32_t slot, uint32_t m, float y, float other, const Around&) const {
        if (slot >= width()) return;
        float value = p.gate.data ? gated(p.act, y, other) : activated(p.act, y);
        p.h[uint64_t(m) * p.up.rows + unit * width() + slot] = value;
    }
};

template <class T, int M>
DEVICE void ffn_in(const FfnInParams& p) {
    run_linear<T, M>(p.step, p.in, p.up.chunks, FfnInTask{p});
}

template <class T>
DEVICE void ffn_in_mma(const FfnInParams& p) {
    run_linear_mma<T>(p.step, p.in, p.up.chunks, FfnInTask{p});
}

template <class T>
DEVICE void ffn_in_codes(const FfnInParams& p) {
    run_linear_codes<T>(p.step, p.in, FfnInTask{p});
}

template <class T>
DEVICE void ffn_in_few(const FfnInParams& p) {
    run_linear_few<T>(p.step, p.in, FfnInTask{p});
}
