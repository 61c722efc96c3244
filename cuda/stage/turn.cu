// Turn: normalises rows and rotates them (signs and a Hadamard transform), or rotates them back, as defined
// by sterna_program::Basis. Without signs and with blocks of one element, rows are only normalised.
//
// A block owns a span of a row: TURN_COLS columns, or one longer Hadamard block: x = row, y = span. Of each
// TURN_COLS columns a thread has four neighbouring ones. Butterflies of columns 1 or 2 apart are within a
// thread, 4 to 64 apart within a warp, 128 to 512 apart through shared memory, and larger distances within a
// thread again. Each thread block normalises the row by itself. Without a norm it reads and writes only its
// own columns, so `to` may be `x`.
#include "../lib/input.cuh"

constexpr uint32_t kTurnQuads = TURN_MOST_COLS / TURN_COLS;
using Turned = RowPart<true, true, kTurnQuads>;
static_assert(4 * LINEAR_THREADS == TURN_COLS && Turned::kCols == TURN_MOST_COLS, "a run is a block's");

// Hadamard butterfly: the first column becomes the sum, the second the difference.
DEVICE void meet(float& first, float& second) {
    float sum = first + second;
    second = first - second;
    first = sum;
}
DEVICE float met(bool is_second, float own, float other) { return is_second ? other - own : own + other; }

// Unnormalised Hadamard transform of each `block` columns.
DEVICE void mix_runs(Turned& held, float* exchanged, uint32_t block, uint32_t cols) {
    uint32_t lane = threadIdx.x % kWarpSize;
    held.each(0, cols, [&](uint32_t quad, uint32_t) {
        float(&x)[4] = held.x[quad];
        if (block > 1) {
            meet(x[0], x[1]);
            meet(x[2], x[3]);
        }
        if (block > 2) {
            meet(x[0], x[2]);
            meet(x[1], x[3]);
        }
#pragma unroll
        for (uint32_t lanes = 1; lanes < kWarpSize; lanes *= 2) {
            if (4 * lanes >= block) break;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                x[i] = met(lane & lanes, x[i], __shfl_xor_sync(kWarp, x[i], lanes));
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
                x[i] = met(threadIdx.x & threads, x[i], other);
            }
        }
    });
#pragma unroll
    for (uint32_t quads = 1; quads < kTurnQuads; quads *= 2) {
        if (quads * TURN_COLS >= block) break;
#pragma unroll
        for (uint32_t quad = 0; quad < kTurnQuads; quad++) {
            if (quad & quads) continue;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) meet(held.x[quad][i], held.x[quad | quads][i]);
        }
    }
}

KERNEL(turn, TurnParams, LINEAR_THREADS) {
    SHARED(float, exchanged, TURN_COLS);
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    uint32_t r = blockIdx.x, span = p.block > TURN_COLS ? p.block : TURN_COLS, begin = blockIdx.y * span;
    if (r >= (p.of_outputs ? p.step.counts->outputs : p.step.counts->rows)) return;
    uint64_t row = (p.of_outputs ? p.step.outputs[r] : r) * uint64_t(p.cols);
    uint32_t cols = p.cols - begin < span ? p.cols - begin : span;
    Turned held;
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
    mix_runs(held, exchanged, p.block, cols);
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
