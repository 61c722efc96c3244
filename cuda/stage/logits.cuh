// Logits: logits[o] = cap(W norm(x[outputs[o]])), with cap(z) = c tanh(z / c) if there is a soft cap c.
//
// A slot of a warp owns one output. Reads W once per M rows that need logits, and not at all without such
// rows. Also multiplies the layers of other stages that have no common fused kernel, one or two layers per
// input.
#pragma once

#include "../lib/linear_codes.cuh"
#include "../lib/linear_mma.cuh"

struct LogitsTask {
    const LogitsParams& p;

    DEVICE uint32_t slots() const { return kWarpSize >> p.in.lanes_log2; }
    DEVICE uint32_t units() const { return (p.w.rows + p.other.rows + slots() - 1) / slots(); }

    DEVICE WeightRow row(uint32_t unit, uint32_t slot) const {
        uint32_t row = unit * slots() + slot;
        if (row >= p.w.rows && row - p.w.rows < p.other.rows) return {1, row - p.w.rows};
        return {0, row < p.w.rows ? row : WeightRow::kNone};
    }
    DEVICE LinearParams weight(uint32_t i) const { return select(i == 1, p.other, p.w); }

    struct Around {};
    DEVICE Around around(uint32_t, uint32_t, uint32_t, const StepRow&) const { return {}; }
    DEVICE Around late(uint32_t, uint32_t, uint32_t, const StepRow&) const { return {}; }
    DEVICE void finish(uint32_t unit, uint32_t slot, uint32_t m, float y, float, const Around&) const {
        if (p.soft_cap > 0.0f) y = p.soft_cap * tanhf(y / p.soft_cap);
        WeightRow at = row(unit, slot);
        float* to = at.weight == 0 ? p.logits : p.other_logits;
        to[uint64_t(m) * (at.weight == 0 ? p.w.rows : p.other.rows) + at.row] = y;
    }
};

template <class T, int M>
DEVICE void logits(const LogitsParams& p) {
    run_linear<T, M>(p.step, p.in, p.w.chunks, LogitsTask{p});
}

template <class T>
DEVICE void logits_mma(const LogitsParams& p) {
    run_linear_mma<T>(p.step, p.in, p.w.chunks, LogitsTask{p});
}

template <class T>
DEVICE void logits_codes(const LogitsParams& p) {
    run_linear_codes<T>(p.step, p.in, LogitsTask{p});
}

template <class T>
DEVICE void logits_few(const LogitsParams& p) {
    run_linear_few<T>(p.step, p.in, LogitsTask{p});
}
