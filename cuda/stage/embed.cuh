// Embed: x[r] = scale table[stride token[r] + first] (+ positions[pos[r]]) (+ types[type[r]]). The token may
// be the one that `sample` picked last for the sequence.
//
// A thread owns a column of a batch row: x = row, y = share of the columns. Reads one row of the table.
// Blocks past the last row do nothing.
#pragma once

#include "../lib/step.cuh"
#include "../types/f32.cuh"

template <class T>
DEVICE void embed(const EmbedParams& p) {
    // The step's tables are uploaded before its first kernel starts.
    bool of_step = blockIdx.x < p.step.counts->rows;
    StepRow row = of_step ? p.step.rows[blockIdx.x] : StepRow{};
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    uint32_t col = blockIdx.y * blockDim.x + threadIdx.x;
    if (!of_step || col >= p.cols) return;
    uint32_t token = row.token == TOKEN_PICKED ? p.picked[row.seq] : row.token;
    float value = T::value(p.table, token * p.stride + p.first, col) * p.scale;
    if (p.positions.data) value += F32::value(p.positions, row.pos, col);
    if (p.types.data) value += F32::value(p.types, p.texts[blockIdx.x].token_type, col);
    p.x[uint64_t(blockIdx.x) * p.cols + col] = value;
}
