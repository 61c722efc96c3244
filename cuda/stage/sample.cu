// Sample: tokens[o] = a token of logits[o], drawn from its `top_k` largest (lower ids win ties); NaN is
// treated as minus infinity.
//
// Biases and penalties are applied to the loaded logits; the buffer is not changed.
//
// Grid: x = stretch of a row, y = row of logits. A block finds the largest candidates of its stretch and
// stores them in order. The last block of a row to arrive finds the largest of those, and one of its warps
// draws. Reads the logits once.
#include "../lib/changes.cuh"
#include "../lib/draw.cuh"
#include "../lib/last_block.cuh"
#include "../lib/step.cuh"

// Stores the token of a row for the host and for the next step.
DEVICE void keep(const SampleParams& p, uint32_t row, uint32_t mailbox, uint32_t token) {
    p.tokens[row] = token;
    if (mailbox == NO_MAILBOX) return;
    p.picked[mailbox / MAILBOXES] = token;
    p.mailboxes[mailbox] = token;
}

// The sampled token that the row was fed with, if its id is only known on the device; or NO_TOKEN.
DEVICE uint32_t newest(const SampleParams& p, uint32_t row) {
    const StepRow& fed = p.step.rows[p.step.outputs[row]];
    return fed.token == TOKEN_PICKED ? p.picked[fed.seq] : NO_TOKEN;
}

KERNEL(sample, SampleParams, SAMPLE_THREADS) {
    Draw& draw = *reinterpret_cast<Draw*>(shared_memory());
    uint32_t row = blockIdx.y, stretches = gridDim.x;
    // The step's tables are uploaded before its first kernel starts.
    bool sampled = row < p.step.counts->sampled;
    const StepSampling how = sampled ? p.sampling[row] : StepSampling{};
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (!sampled) return;

    constexpr uint32_t kOwn = SAMPLE_STRETCH / SAMPLE_THREADS;
    const float* logits = p.logits + uint64_t(row) * p.n_vocab;
    uint32_t first = blockIdx.x * SAMPLE_STRETCH + threadIdx.x;
    float own[kOwn];
#pragma unroll
    for (uint32_t i = 0; i < kOwn; i++) {
        uint32_t id = first + i * SAMPLE_THREADS;
        // Past the end: NaN, which sorts below everything.
        own[i] = id < p.n_vocab ? logits[id] : NAN;
    }
    if (how.changes != 0 || penalises(how)) {
        const TokenChange* changes = p.changes + row * SAMPLE_CHANGES;
        change_logits(own, blockIdx.x * SAMPLE_STRETCH, how, changes, newest(p, row));
    }
    find_largest(draw, how.top_k, [&](auto visit) {
#pragma unroll
        for (uint32_t i = 0; i < kOwn; i++) visit(candidate(own[i], first + i * SAMPLE_THREADS));
    });

    Candidate* largest = p.largest + uint64_t(row) * SAMPLE_MAX * stretches;
    if (threadIdx.x < how.top_k) largest[threadIdx.x * stretches + blockIdx.x] = draw.largest[threadIdx.x];
    if (!comes_last(p.arrived + row, stretches, &draw.last)) return;

    if (how.top_k == 1) {
        if (threadIdx.x >= kWarpSize) return;
        Candidate best = 0;
        for (uint32_t at = threadIdx.x; at < stretches; at += kWarpSize) best = Max::of(best, largest[at]);
        best = reduce_warp<Max>(best);
        if (threadIdx.x == 0) keep(p, row, how.mailbox, id_of(best));
        return;
    }
    // Neighbours have the same rank in different stretches, so this order gives each thread and each warp
    // about the same number of the largest candidates.
    constexpr uint32_t kWarps = SAMPLE_THREADS / kWarpSize;
    uint32_t place = threadIdx.x % kWarpSize * kWarps + threadIdx.x / kWarpSize;
    find_largest(draw, how.top_k, [&](auto visit) {
        uint32_t n = how.top_k * stretches;
        for (uint32_t at = place; at < n; at += kDrawBatch * SAMPLE_THREADS) {
            Candidate batch[kDrawBatch];
#pragma unroll
            for (uint32_t i = 0; i < kDrawBatch; i++) {
                batch[i] = at + i * SAMPLE_THREADS < n ? largest[at + i * SAMPLE_THREADS] : 0;
            }
#pragma unroll
            for (uint32_t i = 0; i < kDrawBatch; i++) visit(batch[i]);
        }
    });
    if (threadIdx.x >= kWarpSize) return;
    uint32_t token = pick(draw, how);
    if (threadIdx.x == 0) keep(p, row, how.mailbox, token);
}
