// Soft cap: logits[o] = cap tanh(logits[o] / cap), after adapters have been added to them; otherwise `logits`
// applies it. A thread owns some columns of a row: x = share of the columns, z = row.
#include "../lib/step.cuh"
#include "../params_adapters.h"

KERNEL(soft_cap, SoftCapParams, SOFT_CAP_THREADS) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    uint32_t r = blockIdx.z;
    if (r >= p.step.counts->outputs) return;
    for (uint32_t col = blockIdx.x * blockDim.x + threadIdx.x; col < p.cols; col += gridDim.x * blockDim.x) {
        float* z = p.logits + uint64_t(r) * p.cols + col;
        *z = p.cap * tanhf(*z / p.cap);
    }
}
