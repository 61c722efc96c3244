// Quantize: normalises batch rows and quantises them to int8, once for all blocks of the tensor core products
// that follow (lib/linear_mma.cuh). The values are the same as in a kernel for single rows (lib/input.cuh).
//
// A block owns a row. Writes it in the order in which type T multiplies it, followed by the sums of its
// chunks if the type uses them, and its RowQuant. Meanwhile the weights of the products are prefetched into
// the L2 cache.
#pragma once

#include "../lib/input.cuh"

template <class T>
DEVICE void quantize_rows(const QuantParams& p) {
    static_assert(T::kInts, "rows of integers");
    uint32_t r = blockIdx.x, n_rows = p.in.of_outputs ? p.step.counts->outputs : p.step.counts->rows;
    if (r < n_rows) prefetch_norm<T::kBlockQuads>(p.in);
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    if (r >= n_rows) return;
    load_rows<T, 1, T::kBlockQuads>(p.step, p.in, 0, p.chunks, p.chunks, r, 1);
    const uint4* from = reinterpret_cast<const uint4*>(shared_memory() + LINEAR_HEADER_BYTES);
    uint4* to = reinterpret_cast<uint4*>(p.in.rounded.rows + uint64_t(r) * p.in.row_bytes);
    for (uint32_t i = threadIdx.x; i < p.in.row_bytes / 16; i += blockDim.x) to[i] = from[i];
    if (threadIdx.x == 0) p.in.rounded.quants[r] = row_quants()[0];
}
