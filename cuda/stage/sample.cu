// Sample: tokens[o] = the largest of logits[o], the lowest id among equals; NaN counts as minus infinity.
//
// Rows that draw instead (a temperature above 0) are picked by the host from the logits: see the backend's tokens().
// A block owns every gridDim.x-th stretch of a row; x = block, y = row of logits. The blocks of a row meet in one atomic
// maximum over (logit, id), and the last of them writes the token. Reads the logits once.
#include "../lib/reduce.cuh"
#include "../lib/step.cuh"

// Larger for larger logits, and for lower ids among equals.
DEVICE unsigned long long candidate(float logit, uint32_t id) {
    // Both zeros are one value.
    uint32_t bits = __float_as_uint(logit + 0.0f);
    uint32_t key = logit != logit ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<unsigned long long>(key) << 32 | static_cast<uint32_t>(~id);
}

KERNEL(sample, SampleParams, SAMPLE_THREADS) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t row = blockIdx.y;
    if (row >= p.step.counts->sampled) return;
    const float* logits = p.logits + uint64_t(row) * p.n_vocab;
    unsigned long long best = 0;
    for (uint32_t id = blockIdx.x * blockDim.x + threadIdx.x; id < p.n_vocab; id += gridDim.x * blockDim.x) {
        best = Max::of(best, candidate(logits[id], id));
    }
    best = reduce_block<Max>(best, reinterpret_cast<unsigned long long*>(shared_memory()));
    if (threadIdx.x != 0) return;
    atomicMax(p.best + row, best);
    __threadfence();
    if (atomicAdd(p.arrived + row, 1u) != gridDim.x - 1) return;
    __threadfence();
    best = atomicMax(p.best + row, 0ull);
    p.tokens[row] = ~static_cast<uint32_t>(best);
    p.best[row] = 0;
    p.arrived[row] = 0;
}
