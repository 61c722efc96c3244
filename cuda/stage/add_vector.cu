// AddVector: x[r] += v, a control vector after a layer. A thread owns some columns of a row: x = share of the
// columns, z = row.
#include "../lib/step.cuh"
#include "../params_adapters.h"

KERNEL(add_vector, AddVectorParams, ADD_VECTOR_THREADS) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    uint32_t r = blockIdx.z;
    if (r >= p.step.counts->rows) return;
    for (uint32_t col = blockIdx.x * blockDim.x + threadIdx.x; col < p.cols; col += gridDim.x * blockDim.x)
        p.x[uint64_t(r) * p.cols + col] += p.v[col];
}
