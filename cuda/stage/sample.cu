// Sample: tokens[o] = a token of logits[o]; NaN counts as minus infinity.
//
// The largest logit (the lowest id among equals): a block owns every gridDim.x-th stretch of a row; x =
// block, y = row of logits. The blocks of a row meet in one atomic maximum over (logit, id), and the last of
// them writes the token. Reads the logits once.
//
// A draw from the top_k largest: one block, which reads the logits twice. Of the largest logits that its
// threads met, the top_k-th is no larger than the top_k-th of the row, so the second pass collects all that
// reach it: few more than top_k, unless the largest logits stand a multiple of the threads apart. Then they
// are found one by one.
#include "../lib/draw.cuh"
#include "../lib/reduce.cuh"
#include "../lib/step.cuh"

// The largest candidate of a row below `bound` that this block's grid stride meets.
DEVICE Candidate largest_below(
    const float* logits, uint32_t n_vocab, Candidate bound, uint32_t block, uint32_t blocks
) {
    // So many are on their way at a time.
    constexpr uint32_t kBatch = 8;
    uint32_t stride = blocks * blockDim.x;
    Candidate best = 0;
    for (uint32_t first = block * blockDim.x + threadIdx.x; first < n_vocab; first += kBatch * stride) {
        float batch[kBatch];
#pragma unroll
        for (uint32_t i = 0; i < kBatch; i++)
            batch[i] = first + i * stride < n_vocab ? logits[first + i * stride] : 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < kBatch; i++) {
            Candidate c = candidate(batch[i], first + i * stride);
            if (first + i * stride < n_vocab && c < bound) best = Max::of(best, c);
        }
    }
    return best;
}

// Where the host finds the token of a row, and where the next step does.
DEVICE void keep(const SampleParams& p, uint32_t row, uint32_t mailbox, uint32_t token) {
    p.tokens[row] = token;
    if (mailbox == NO_MAILBOX) return;
    p.picked[mailbox / MAILBOXES] = token;
    p.mailboxes[mailbox] = token;
}

DEVICE void greedy(const SampleParams& p, uint32_t row, uint32_t mailbox, const float* logits) {
    Candidate best = largest_below(logits, p.n_vocab, kAboveAll, blockIdx.x, gridDim.x);
    best = reduce_block<Max, SAMPLE_THREADS>(best, reinterpret_cast<Candidate*>(shared_memory()));
    if (threadIdx.x != 0) return;
    atomicMax(p.best + row, best);
    if (arrive(p.arrived + row) != gridDim.x - 1) return;
    // Nobody has read it before, and all maxima are in it.
    keep(p, row, mailbox, id_of(p.best[row]));
    p.best[row] = 0;
    p.arrived[row] = 0;
}

DEVICE void drawn(const SampleParams& p, uint32_t row, const StepSampling& how, const float* logits) {
    Draw& draw = *reinterpret_cast<Draw*>(shared_memory());
    draw.kept[threadIdx.x] = largest_below(logits, p.n_vocab, kAboveAll, 0, 1);
    if (threadIdx.x == 0) draw.n = 0;
    sort_descending(draw.kept, SAMPLE_THREADS);
    Candidate least = draw.kept[how.top_k - 1];
    __syncthreads();

    for (uint32_t id = threadIdx.x; id < p.n_vocab; id += blockDim.x) {
        Candidate c = candidate(logits[id], id);
        if (c < least) continue;
        uint32_t at = atomicAdd(&draw.n, 1u);
        if (at < kDrawRoom) draw.kept[at] = c;
    }
    __syncthreads();
    if (draw.n <= kDrawRoom) {
        uint32_t size = 1;
        while (size < draw.n) size *= 2;
        for (uint32_t i = draw.n + threadIdx.x; i < size; i += blockDim.x) draw.kept[i] = 0;
        sort_descending(draw.kept, size);
    } else {
        Candidate bound = kAboveAll;
        for (uint32_t i = 0; i < how.top_k; i++) {
            Candidate next = largest_below(logits, p.n_vocab, bound, 0, 1);
            bound = reduce_block<Max, SAMPLE_THREADS>(next, draw.scratch);
            if (threadIdx.x == 0) draw.kept[i] = bound;
            __syncthreads();
        }
    }
    uint32_t token = pick(draw, how);
    if (threadIdx.x == 0) keep(p, row, how.mailbox, token);
}

KERNEL(sample, SampleParams, SAMPLE_THREADS) {
    uint32_t row = blockIdx.y;
    // The step's tables are there already.
    bool sampled = row < p.step.counts->sampled;
    const StepSampling how = sampled ? p.sampling[row] : StepSampling{};
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (!sampled) return;
    const float* logits = p.logits + uint64_t(row) * p.n_vocab;
    if (how.top_k == 1) {
        greedy(p, row, how.mailbox, logits);
    } else if (blockIdx.x == 0) {
        drawn(p, row, how, logits);
    }
}
