// Clamp: to[r] = min(max(norm(x[r]), lower), upper): the input of a linear layer with bounds, or its output
// in place, without a norm. NaN stays NaN.
//
// A block owns a row: x = row. `to` may be `x`, since all threads have read what others write before the norm
// is known.
#include "../lib/input.cuh"
#include "../params_adapters.h"

KERNEL(clamp, ClampParams, LINEAR_THREADS) {
    InputParams in = {};
    in.cols = p.cols;
    in.norm = p.norm;
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    uint32_t r = blockIdx.x;
    if (r >= p.step.counts->rows) return;
    const float* x = p.x + uint64_t(r) * p.cols;
    float* to = p.to + uint64_t(r) * p.cols;
    RowPart<true, false, 4> held;
    RowNorm norm = row_norm(in, x, held);
    for (uint32_t part = 0; part < held.parts(p.cols); part++) {
        if (part > 0) held.load(x, p.cols, part);
        held.apply(norm, in.norm, in.norm.weight, p.cols, part);
        held.each(part, p.cols, [&](uint32_t quad, uint32_t col) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                float y = held.x[quad][i];
                if (col + i < p.cols) to[col + i] = y < p.lower ? p.lower : y > p.upper ? p.upper : y;
            }
        });
    }
}
