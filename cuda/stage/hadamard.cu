// Hadamard: normalises rows and rotates them (signs and a Hadamard transform), or rotates them back, as
// defined by sterna_program::Basis. Without signs and with blocks of one element, rows are only normalised.
//
// A block owns a span of a row: HADAMARD_COLS columns, or one longer Hadamard block: x = row, y = span. Of
// each HADAMARD_COLS columns a thread has four neighbouring ones. Butterflies of columns 1 or 2 apart are
// within a thread, 4 to 64 apart within a warp, 128 to 512 apart through shared memory, and larger distances
// within a thread again. Each thread block normalises the row by itself. Without a norm it reads and writes
// only its own columns, so `to` may be `x`.
#include "../lib/input.cuh"

constexpr uint32_t kHadamardQuads = HADAMARD_MAX_COLS / HADAMARD_COLS;
using Span = RowPart<true, true, kHadamardQuads>;
static_assert(4 * LINEAR_THREADS == HADAMARD_COLS && Span::kCols == HADAMARD_MAX_COLS, "a run is a block's");

// Hadamard butterfly: the first column becomes the sum, the second the difference.
DEVICE void butterfly(float& first, float& second) {
    float sum = first + second;
    second = first - second;
    first = sum;
}
DEVICE float butterfly_half(bool is_second, float own, float other) {
    return is_second ? other - own : own + other;
}

// Unnormalised Hadamard transform of each `block` columns.
DEVICE void hadamard_blocks(Span& held, float* exchanged, uint32_t block, uint32_t cols) {
    uint32_t lane = threadIdx.x % kWarpSize;
    held.each(0, cols, [&](uint32_t quad, uint32_t) {
        float(&x)[4] = held.x[quad];
        if (block > 1) {
            butterfly(x[0], x[1]);
            butterfly(x[2], x[3]);
        }
        if (block > 2) {
            butterfly(x[0], x[2]);
            butterfly(x[1], x[3]);
        }
#pragma unroll
        for (uint32_t lanes = 1; lanes < kWarpSize; lanes *= 2) {
            if (4 * lanes >= block) break;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                x[i] = butterfly_half(lane & lanes, x[i], __shfl_xor_sync(kWarp, x[i], lanes));
        }
#pragma unroll
        for (uint32_t threads = kWarpSize; threads < LINEAR_THREADS; threads *= 2) {
            if (4 * threads >= block) break;
            __syncthreads();
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) exchanged[i * LINEAR_THREADS + threadIdx.x] = x[i];
            __syncthreads();
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                float other = exchanged[i * LINEAR_THREADS + (threadIdx.x ^ threads)];
                x[i] = butterfly_half(threadIdx.x & threads, x[i], other);
            }
        }
    });
#pragma unroll
    for (uint32_t quads = 1; quads < kHadamardQuads; quads *= 2) {
        if (quads * HADAMARD_COLS >= block) break;
#pragma unroll
        for (uint32_t quad = 0; quad < kHadamardQuads; quad++) {
            if (quad & quads) continue;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) butterfly(held.x[quad][i], held.x[quad | quads][i]);
        }
    }
}

KERNEL(hadamard, HadamardParams, LINEAR_THREADS) {
    SHARED(float, exchanged, HADAMARD_COLS);
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    uint32_t span = p.block > HADAMARD_COLS ? p.block : HADAMARD_COLS;
    uint32_t r = blockIdx.x, begin = blockIdx.y * span;
    if (r >= (p.of_outputs ? p.step.counts->outputs : p.step.counts->rows)) return;
    uint64_t row = (p.of_outputs ? p.step.outputs[r] : r) * uint64_t(p.cols);
    uint32_t cols = p.cols - begin < span ? p.cols - begin : span;
    Span held;
    if (p.norm.kind == NORM_NONE) {
        held.load(p.x + row + begin, cols, 0);
    } else {
        InputParams in = {};
        in.cols = p.cols;
        in.norm = p.norm;
        RowNorm norm = row_norm(in, p.x + row, held);
        in.norm.weight += begin;
        if (in.norm.bias) in.norm.bias += begin;
        held.load(p.x + row + begin, cols, 0);
        held.apply(norm, in.norm, in.norm.weight, cols, 0);
    }

    auto flip = [&](uint32_t quad, uint32_t col) {
        if (col >= cols || !p.signs) return;
        float signs[4];
        load_quad<true>(p.signs + begin, col, cols, signs);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) held.x[quad][i] *= signs[i];
    };
    if (!p.back) held.each(0, cols, flip);
    hadamard_blocks(held, exchanged, p.block, cols);
    held.each(0, cols, [&](uint32_t quad, uint32_t) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) held.x[quad][i] *= p.factor;
    });
    if (p.back) held.each(0, cols, flip);
    held.each(0, cols, [&](uint32_t quad, uint32_t col) {
        if (col >= cols) return;
        float(&x)[4] = held.x[quad];
        *reinterpret_cast<float4*>(p.to + row + begin + col) = make_float4(x[0], x[1], x[2], x[3]);
    });
}
