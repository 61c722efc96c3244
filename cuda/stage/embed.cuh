// Embed: x[r] = scale table[token[r]] (+ positions[pos[r]]). The token may be the one that `sample` picked
// last for the sequence.
//
// A block owns one row of the step, a thread every EMBED_THREADS-th column. Reads one row of the table.
// Blocks beyond the step's rows do nothing.
#pragma once

#include "../lib/step.cuh"
#include "../types/f32.cuh"

template <class T>
DEVICE void embed(const EmbedParams& p) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    if (blockIdx.x >= p.step.counts->rows) return;
    StepRow row = p.step.rows[blockIdx.x];
    uint32_t token = row.token == TOKEN_PICKED ? p.picked[row.seq] : row.token;
    float* x = p.x + uint64_t(blockIdx.x) * p.cols;
    for (uint32_t col = threadIdx.x; col < p.cols; col += blockDim.x) {
        float value = T::value(p.table, token, col) * p.scale;
        if (p.positions.data) value += F32::value(p.positions, row.pos, col);
        x[col] = value;
    }
}
