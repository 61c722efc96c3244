// ProjAdd: x[r] += W norm(y[r]).
//
// A slot of a warp owns one output, which is one row of W. Reads W once per M batch rows; every block reads
// the rows of y. Requires: y was written by an earlier launch; x and y do not overlap.
#pragma once

#include "../lib/linear_codes.cuh"
#include "../lib/linear_mma.cuh"

struct ProjAddTask {
    const ProjAddParams& p;

    DEVICE uint32_t slots() const { return kWarpSize >> p.in.lanes_log2; }
    DEVICE uint32_t units() const { return (p.w.rows + slots() - 1) / slots(); }

    DEVICE WeightRow row(uint32_t unit, uint32_t slot) const {
        uint32_t row = unit * slots() + slot;
        return {0, row < p.w.rows ? row : WeightRow::kNone};
    }
    DEVICE const LinearParams& weight(uint32_t) const { return p.w; }

    struct Around {
        float x;
    };
    DEVICE Around around(uint32_t unit, uint32_t slot, uint32_t m, const StepRow&) const {
        return {p.x[uint64_t(m) * p.w.rows + unit * slots() + slot]};
    }
    DEVICE Around late(uint32_t unit, uint32_t slot, uint32_t m, const StepRow& row) const {
        return around(unit, slot, m, row);
    }
    DEVICE void finish(
        uint32_t unit, uint32_t slot, uint32_t m, float y, float, const Around& around
    ) const {
        p.x[uint64_t(m) * p.w.rows + unit * slots() + slot] = around.x + y;
    }
};

template <class T, int M>
DEVICE void proj_add(const ProjAddParams& p) {
    run_linear<T, M>(p.step, p.in, p.w.chunks, ProjAddTask{p});
}

template <class T>
DEVICE void proj_add_mma(const ProjAddParams& p) {
    run_linear_mma<T>(p.step, p.in, p.w.chunks, ProjAddTask{p});
}

template <class T>
DEVICE void proj_add_codes(const ProjAddParams& p) {
    run_linear_codes<T>(p.step, p.in, ProjAddTask{p});
}

template <class T>
DEVICE void proj_add_few(const ProjAddParams& p) {
    run_linear_few<T>(p.step, p.in, ProjAddTask{p});
}
