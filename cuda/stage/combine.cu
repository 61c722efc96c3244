// Products become what a stage writes: out[r] = act(gate[r]) * y[r], act(y[r]) where there is no gate, or
// out[r] += y[r]. Or what is there is gated: out[r] = y[r] / (1 + exp(-gate[r])).
//
// For stages whose layers have no kernel in common: `logits` of each layer's type makes the products, of the
// step's rows, or `experts` of their slots. A thread owns some columns of a row: x = share of the columns,
// z = row.
#include "ffn_in.cuh"

KERNEL(combine, CombineParams, COMBINE_THREADS) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t r = blockIdx.z;
    if (r >= p.step.counts->rows * p.each) return;
    for (uint32_t col = blockIdx.x * blockDim.x + threadIdx.x; col < p.cols; col += gridDim.x * blockDim.x) {
        uint64_t at = uint64_t(r) * p.cols + col;
        float y = p.y[at];
        if (p.act == ACT_GATE || p.act == ACT_SHARE) {
            y /= 1.0f + expf(-p.gate[p.act == ACT_SHARE ? r : at]);
        } else if (p.act != ACT_NONE) {
            y = p.gate ? gated(p.act, p.gate[at], y) : activated(p.act, y);
        }
        p.out[at] = p.add ? p.out[at] + y : y;
    }
}
