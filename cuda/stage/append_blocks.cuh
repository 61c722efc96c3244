// Append for KV caches in blocks: rotates the queries, keys and values of a batch where their side of the
// cache is quantised, and writes each key and value to its page.
//
// A block of threads owns one batch row, one KV head, and its keys or its values: x = 2 KV head + part, z =
// row. Its first warp owns the vector; all warps rotate queries. A block of a vector is one register across
// the lanes of a warp.
//
// Codes and scales match ggml-types/src/types/{q8_0,q4_0}.rs bit for bit.
#pragma once

#include "../lib/blocks.cuh"
#include "../lib/reduce.cuh"
#include "../lib/rotate.cuh"
#include "../lib/step.cuh"

// Shared memory of the encoding warp.
struct BlockRoom {
    float vector[CODES_MAX_DIM];
    float sum_xq[kWarpSize], sum_qq[kWarpSize];
};
static_assert(sizeof(BlockRoom) <= APPEND_BLOCKS_SHARED_BYTES, "the host asks for less");

// Clamps a rounded value to -limit .. limit - 1; NaN becomes 0.
DEVICE float within(float rounded, float limit) {
    return rounded != rounded ? 0.0f : fminf(fmaxf(rounded, -limit), limit - 1.0f);
}

DEVICE float reciprocal(float x) { return x == 0.0f ? 0.0f : 1.0f / x; }

// q8_0: scales the largest magnitude to 127.
DEVICE void store_q8_0(const Vector& v, const BlockPage& page, uint32_t place) {
    uint32_t lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (uint32_t j = 0; j < kLaneElems; j++) {
        if (j >= v.n) break;
        float most = fabsf(v.x[j]) >= 0.0f ? fabsf(v.x[j]) : 0.0f;
        float scale = reduce_lanes<Max>(most, kWarpSize) / 127.0f;
        float q = within(roundf(v.x[j] * reciprocal(scale)), 128.0f);
        page.vector(place)[Vector::elem(j)] = uint8_t(int8_t(int32_t(q)));
        if (lane == 0) *page.scale(place, j) = half_bits(scale);
    }
}

// Sums of x q and q q over a block, quantised with 1 / scale = `inverse`.
DEVICE void try_scale(const float* x, float inverse, float& sum_xq, float& sum_qq) {
    sum_xq = sum_qq = 0.0f;
    for (uint32_t e = 0; e < BLOCK_ELEMS; e++) {
        float q = within(rintf(x[e] * inverse), 8.0f);
        sum_xq += x[e] * q;
        sum_qq += q * q;
    }
}

// q4_0: of 19 candidate scales, one per lane, the one with the smallest error.
DEVICE float best_scale(const float* x, BlockRoom& room) {
    constexpr uint32_t kTries = 19;
    uint32_t lane = threadIdx.x % kWarpSize;
    float extreme = 0.0f;
    for (uint32_t e = 0; e < BLOCK_ELEMS; e++) extreme = fabsf(x[e]) > fabsf(extreme) ? x[e] : extreme;
    __syncwarp();
    if (lane < kTries) {
        // Steps of 0.1: 0 first, then -9 to -1 and 1 to 9.
        float by = lane == 0 ? 0.0f : lane < 10 ? float(lane) - 10.0f : float(lane) - 9.0f;
        try_scale(x, -(8.0f + 0.1f * by) / extreme, room.sum_xq[lane], room.sum_qq[lane]);
    }
    __syncwarp();
    float scale = 0.0f, best = 0.0f;
    for (uint32_t i = 0; i < kTries; i++) {
        float sum_xq = room.sum_xq[i], sum_qq = room.sum_qq[i];
        if (sum_qq > 0.0f && sum_xq * sum_xq > best * sum_qq) {
            scale = sum_xq / sum_qq;
            best = scale * sum_xq;
        }
    }
    return fabsf(extreme) < 1e-15f ? 0.0f : scale;
}

DEVICE void store_q4_0(const Vector& v, const BlockPage& page, uint32_t place) {
    BlockRoom& room = *reinterpret_cast<BlockRoom*>(shared_memory());
    uint32_t lane = threadIdx.x % kWarpSize;
#pragma unroll
    for (uint32_t j = 0; j < kLaneElems; j++) {
        if (j < v.n) room.vector[Vector::elem(j)] = v.x[j];
    }
    __syncwarp();
#pragma unroll 1
    for (uint32_t j = 0; j < v.n; j++) {
        const float* x = room.vector + j * BLOCK_ELEMS;
        float scale = best_scale(x, room);
        uint32_t q = uint32_t(within(rintf(x[lane] * reciprocal(scale)), 8.0f) + 8.0f);
        uint32_t upper = __shfl_xor_sync(kWarp, q, 4);
        uint32_t piece = Vector::elem(j) / CODES_PIECE, byte = lane % CODES_PIECE / 8 * 4 + lane % 4;
        if ((lane & 4) == 0) page.vector(place)[piece * 8 + byte] = uint8_t(q | upper << 4);
        if (lane == 0) *page.scale(place, j) = half_bits(scale);
    }
}

DEVICE void append_blocks(const AppendBlocksParams& p) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t r = blockIdx.z;
    if (r >= p.step.counts->rows) return;
    uint32_t head_dim = p.kv.head_dim, head = blockIdx.x / 2, part = blockIdx.x % 2;
    uint32_t warp = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
    StepRow row = p.step.rows[r];
    if (p.raw && warp == 0) {
        Vector v =
            load_vector(p.raw + ((uint64_t(r) * 2 + part) * p.kv.n_kv_heads + head) * head_dim, head_dim);
        BlockPage page(p.kv, page_of(p.step, row.seq, row.pos), part, head);
        uint32_t place = row.pos % PAGE_POSITIONS;
        if (page.form != BLOCKS_HALVES) {
            rotate(v, p.kv);
            // Range that a block's scale can represent: ggml-types/src/kv/q8_0.rs.
            count_clamped(p.kv.clamped, keep_within(v, 4.0f * kLargestHalf));
        }
        if (page.form == BLOCKS_Q8_0) {
            store_q8_0(v, page, place);
        } else if (page.form == BLOCKS_Q4_0) {
            store_q4_0(v, page, place);
        } else {
            uint16_t* to = reinterpret_cast<uint16_t*>(page.vector(place));
#pragma unroll
            for (uint32_t j = 0; j < kLaneElems; j++) {
                if (j < v.n) to[Vector::elem(j)] = half_bits(v.x[j]);
            }
        }
    }
    if (part == 1 || p.kv.forms[0] == BLOCKS_HALVES) return;
    for (uint32_t h = warp; h < p.group; h += warps) {
        float* q = p.q + ((uint64_t(r) * p.kv.n_kv_heads + head) * p.group + h) * head_dim;
        Vector v = load_vector(q, head_dim);
        rotate(v, p.kv);
#pragma unroll
        for (uint32_t j = 0; j < kLaneElems; j++) {
            if (j < v.n) q[Vector::elem(j)] = v.x[j];
        }
    }
}
