// Conv: a convolution per channel over the rows of each sequence, with gates, as defined by Stage::Conv.
//
// v = before * u; c[r] = bias + sum_j w[channel, j] v[r - (taps - 1) + j]; out = after * silu(c), where the
// gates, the bias and SiLU may be absent. A tail has the last taps - 1 rows of v of a sequence.
//
// A thread owns one channel: x = share of the channels. conv, for a few rows per sequence: all rows of a run
// (consecutive rows of one sequence), y = run; the thread reads its channel of the tail before it writes it.
// Prefill uses two kernels: conv_rows computes CONV_ROWS rows per thread, y = share of the rows; conv_tail
// then writes the tails, y = run. Requires: no two runs write the same slot. Reads u and the gates once from
// memory: neighbouring rows are read again from the caches.
#include "../lib/input.cuh"

// v at row `row` of a run; a negative row is one of the sequence's earlier rows (from the tail).
DEVICE float conv_input(const ConvParams& p, const StepRun& run, int32_t row, uint32_t channel) {
    if (row < 0) {
        if (run.from == NO_STATE) return 0.0f;
        uint32_t kept = p.taps - 1;
        return p.tails[(uint64_t(run.from) * kept + uint32_t(int32_t(kept) + row)) * p.channels + channel];
    }
    uint64_t at = (run.first + uint64_t(row)) * p.channels + channel;
    return p.before ? p.before[at] * p.u[at] : p.u[at];
}

// Writes the output of a row from the sum of its taps.
DEVICE void conv_output(const ConvParams& p, uint64_t row, uint32_t channel, float sum) {
    uint64_t at = row * p.channels + channel;
    if (p.silu) sum = sum / (1.0f + expf(-sum));
    p.out[at] = p.after ? p.after[at] * sum : sum;
}

KERNEL(conv, ConvParams, CONV_THREADS) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    StepRun run = p.runs[blockIdx.y];
    uint32_t channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= p.channels || run.rows == 0) return;
    // Taps, and the rows of v that they apply to, which move by one per row.
    float w[CONV_MAX_TAPS], v[CONV_MAX_TAPS];
    uint32_t kept = p.taps - 1;
#pragma unroll
    for (uint32_t j = 0; j < CONV_MAX_TAPS; j++) {
        w[j] = j <= kept ? p.w[uint64_t(channel) * p.taps + j] : 0.0f;
        v[j] = j < kept ? conv_input(p, run, int32_t(j) - int32_t(kept), channel) : 0.0f;
    }
    float bias = p.bias ? p.bias[channel] : 0.0f;
    for (uint32_t i = 0; i < run.rows; i++) {
        float now = conv_input(p, run, int32_t(i), channel), sum = bias;
#pragma unroll
        for (uint32_t j = 0; j < CONV_MAX_TAPS; j++) {
            if (j == kept) v[j] = now;
            if (j <= kept) sum = fmaf(w[j], v[j], sum);
        }
        conv_output(p, run.first + uint64_t(i), channel, sum);
#pragma unroll
        for (uint32_t j = 0; j + 1 < CONV_MAX_TAPS; j++) v[j] = v[j + 1];
        uint32_t slot = state_after(p.runs, run, i);
        if (slot == NO_STATE) continue;
#pragma unroll
        for (uint32_t j = 0; j + 1 < CONV_MAX_TAPS; j++) {
            if (j < kept) p.tails[(uint64_t(slot) * kept + j) * p.channels + channel] = v[j];
        }
    }
#pragma unroll
    for (uint32_t j = 0; j + 1 < CONV_MAX_TAPS; j++) {
        if (j < kept) p.tails[(uint64_t(run.to) * kept + j) * p.channels + channel] = v[j];
    }
}

KERNEL(conv_rows, ConvParams, CONV_THREADS) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t channel = blockIdx.x * blockDim.x + threadIdx.x, rows = p.step.counts->rows;
    uint32_t first = blockIdx.y * CONV_ROWS;
    if (channel >= p.channels || first >= rows) return;
    float w[CONV_MAX_TAPS];
#pragma unroll
    for (uint32_t j = 0; j < CONV_MAX_TAPS; j++)
        w[j] = j < p.taps ? p.w[uint64_t(channel) * p.taps + j] : 0.0f;
    float bias = p.bias ? p.bias[channel] : 0.0f;
    uint32_t at_run = 0;
    StepRun run = p.runs[0];
    for (uint32_t row = first; row < first + CONV_ROWS && row < rows; row++) {
        while (row >= run.first + run.rows) run = p.runs[++at_run];
        int32_t oldest = int32_t(row - run.first) - int32_t(p.taps - 1);
        float sum = bias;
#pragma unroll
        for (uint32_t j = 0; j < CONV_MAX_TAPS; j++) {
            if (j < p.taps) sum = fmaf(w[j], conv_input(p, run, oldest + int32_t(j), channel), sum);
        }
        conv_output(p, row, channel, sum);
    }
}

KERNEL(conv_tail, ConvParams, CONV_THREADS) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    StepRun run = p.runs[blockIdx.y];
    uint32_t channel = blockIdx.x * blockDim.x + threadIdx.x, kept = p.taps - 1;
    if (channel >= p.channels || run.rows == 0) return;
    for (uint32_t i = run.first_kept; i < run.first_kept + run.n_kept; i++) {
        uint64_t slot = state_after(p.runs, run, i);
        for (uint32_t j = 0; j < kept; j++) {
            float v = conv_input(p, run, int32_t(i + 1 + j) - int32_t(kept), channel);
            p.tails[(slot * kept + j) * p.channels + channel] = v;
        }
    }
    // The oldest first: with a single slot, each row is read before it is overwritten.
    for (uint32_t j = 0; j < kept; j++) {
        float v = conv_input(p, run, int32_t(run.rows + j) - int32_t(kept), channel);
        p.tails[(uint64_t(run.to) * kept + j) * p.channels + channel] = v;
    }
}
