// Cut: what remains of a gate above a cutoff, before its activation function:
// gate[r] = max(gate[r] - (mean + cutoff * standard deviation), 0), over the elements of the row.
//
// For FfnIn with a cutoff, after `logits` has computed the gate; `combine` does the rest. A block owns a row:
// x = row. It reads the row three times, with sums as pairs of floats, which round like the CPU's f64 sums.
#include "../lib/reduce.cuh"
#include "../lib/step.cuh"
#include "../params_altup.h"

KERNEL(cut, CutParams, ALTUP_ROW_THREADS) {
    SHARED(Wide, scratch, 2 * 32);
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t r = blockIdx.x;
    if (r >= p.step.counts->rows) return;
    float* gate = p.gate + uint64_t(r) * p.cols;
    float len = static_cast<float>(p.cols), one_over = 1.0f / len;
    Wide sum = {0.0f, 0.0f}, squares = {0.0f, 0.0f};
    for (uint32_t col = threadIdx.x; col < p.cols; col += ALTUP_ROW_THREADS)
        sum = add(sum, Wide{gate[col], 0.0f});
    float mean = divide(reduce_block<Sum, ALTUP_ROW_THREADS>(sum, scratch), len, one_over).hi;
    for (uint32_t col = threadIdx.x; col < p.cols; col += ALTUP_ROW_THREADS)
        squares = add_square(squares, gate[col] - mean);
    Wide variance = divide(reduce_block<SumAlike, ALTUP_ROW_THREADS>(squares, scratch + 32), len, one_over);
    float bound = fmaf(p.cutoff, sqrtf(variance.hi), mean);
    for (uint32_t col = threadIdx.x; col < p.cols; col += ALTUP_ROW_THREADS) {
        float above = gate[col] - bound;
        // A comparison keeps NaN, which fmaxf drops.
        gate[col] = above < 0.0f ? 0.0f : above;
    }
}
