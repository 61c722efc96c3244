// Alternating updates (AltUp): four residual streams, of which a layer computes one.
//
//   altup_predict   m = W tanh(c); out[j] = x[j] + sum over i of m[4 j + i] x[i]; y = out[active]
//   altup_correct   m = W tanh(c); x[j] = predicted[j] + (1 + m[j]) (y - predicted[active]);
//                   scaled = factors x[active]
//   rescale         y[j] = y[j] sqrt(mean(like^2)) / sqrt(max(mean(y[j]^2), floor)); mean = mean of all four
//
// In the first two a thread owns some columns of a row, of all streams: x = share of the columns, z = row.
// They read and write each stream once. In the last a block owns a row: x = row. It reads each stream twice,
// with sums as pairs of floats, which round like the CPU's f64 sums.
#include "../lib/reduce.cuh"
#include "../lib/step.cuh"
#include "../params_altup.h"

// A row of W times tanh(c).
DEVICE float of_streams(const float* w, const float (&c)[4]) {
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) sum = fmaf(w[i], c[i], sum);
    return sum;
}

DEVICE void load_router(const float* c, float (&to)[4]) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) to[i] = tanhf(c[i]);
}

KERNEL(altup_predict, AltUpPredictParams, ALTUP_THREADS) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    uint32_t r = blockIdx.z;
    if (r >= p.step.counts->rows) return;
    float c[4], m[16];
    load_router(p.c + 4 * uint64_t(r), c);
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) m[i] = of_streams(p.w + 4 * i, c);
    for (uint32_t col = blockIdx.x * blockDim.x + threadIdx.x; col < p.cols; col += gridDim.x * blockDim.x) {
        uint64_t at = uint64_t(r) * p.cols + col;
        float x[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) x[i] = p.x[i][at];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            float sum = x[j];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) sum = fmaf(m[4 * j + i], x[i], sum);
            p.out[j][at] = sum;
            if (j == p.active) p.y[at] = sum;
        }
    }
}

KERNEL(altup_correct, AltUpCorrectParams, ALTUP_THREADS) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    uint32_t r = blockIdx.z;
    if (r >= p.step.counts->rows) return;
    float c[4], by[4];
    load_router(p.c + 4 * uint64_t(r), c);
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) by[j] = 1.0f + of_streams(p.w + 4 * j, c);
    for (uint32_t col = blockIdx.x * blockDim.x + threadIdx.x; col < p.cols; col += gridDim.x * blockDim.x) {
        uint64_t at = uint64_t(r) * p.cols + col;
        float predicted[4], change = p.y[at];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) predicted[j] = p.predicted[j][at];
        // Without indexing registers.
        float of_active = predicted[0];
#pragma unroll
        for (uint32_t j = 1; j < 4; j++) of_active = j == p.active ? predicted[j] : of_active;
        change -= of_active;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            float x = fmaf(by[j], change, predicted[j]);
            p.x[j][at] = x;
            if (j == p.active) p.scaled[at] = p.factors[col] * x;
        }
    }
}

// Mean of the squares of a row, for all threads of the block.
DEVICE Wide mean_square(const float* row, uint32_t cols, Wide* scratch) {
    Wide sum = {0.0f, 0.0f};
    for (uint32_t col = threadIdx.x; col < cols; col += ALTUP_ROW_THREADS) sum = add_square(sum, row[col]);
    float len = static_cast<float>(cols);
    return divide(reduce_block<SumAlike, ALTUP_ROW_THREADS>(sum, scratch), len, 1.0f / len);
}

KERNEL(rescale, RescaleParams, ALTUP_ROW_THREADS) {
    SHARED(Wide, scratch, 4 * 32);
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    uint32_t r = blockIdx.x;
    if (r >= p.step.counts->rows) return;
    uint64_t first = uint64_t(r) * p.cols;
    float want = sqrtf(mean_square(p.like + first, p.cols, scratch).hi), by[3];
#pragma unroll
    for (uint32_t j = 0; j < 3; j++) {
        Wide own = mean_square(p.y[j] + first, p.cols, scratch + 32 * (j + 1));
        if (own.hi < p.floor) own = {p.floor, 0.0f};
        by[j] = want * reciprocal_root(own);
    }
    for (uint32_t col = threadIdx.x; col < p.cols; col += ALTUP_ROW_THREADS) {
        float sum = p.mean ? p.like[first + col] : 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < 3; j++) {
            float y = by[j] * p.y[j][first + col];
            p.y[j][first + col] = y;
            sum += y;
        }
        if (p.mean) p.mean[first + col] = 0.25f * sum;
    }
}
