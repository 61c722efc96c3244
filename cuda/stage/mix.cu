// Mix: x[r] += sum of p_j y_j over the experts of a row, y being their products, or x[r] = the sum; for
// batches whose rows are sorted by expert. A thread owns some columns of a row: x = share of the columns, z =
// row.
#include "../lib/routes.cuh"
#include "../lib/step.cuh"

KERNEL(mix, MixParams, MIX_THREADS) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    uint32_t r = blockIdx.z;
    if (r >= p.step.counts->rows) return;
    for (uint32_t col = blockIdx.x * blockDim.x + threadIdx.x; col < p.cols; col += gridDim.x * blockDim.x) {
        float sum = mixed(p.routes, r, p.products, p.cols, col);
        float* x = p.x + uint64_t(r) * p.cols + col;
        *x = p.adds ? *x + sum : sum;
    }
}
