// Attend over a cache whose keys are also the values: out[r][h] = softmax(cap(scale q[r][h] . K[first ..=
// last])) K over the row's own sequence, row by row, with first, last, cap and sinks as in attend.cuh. All
// query heads share the cache's only head.
//
// Split-K flash decoding. A block owns one batch row, up to LATENT_HEADS query heads and one split of the
// positions: x = tile of query heads, y = split, z = row. Its keys are copied to shared memory kPositions at
// a time, and each warp owns one of the heads: lane i computes the score of the i-th of these positions, and
// then each lane adds up its pairs of elements over all of them. So a key is read once for all heads of the
// block. With one split the block writes the result; otherwise it stores its part in `partial`, and the last
// block to arrive merges the parts.
//
// Shared memory: the merge's results and a word (lib/parts.cuh); the queries as floats, later the weights of
// the parts; the weights of positions, [LATENT_HEADS, kPositions]; keys, [kPositions, kPitch].
//
// Reads head_dim elements per position and tile of heads. Requires head_dim <= LATENT_MAX_DIM, zeros after
// each vector up to the stride, and `arrived` = 0.
#include "../params_latent.h"

#include "attend.cuh"

// Pairs of elements per lane.
constexpr uint32_t kLatentPairs = LATENT_MAX_DIM / (2 * kWarpSize);

template <class E>
DEVICE float2 two_elements(const E* at) {
    if constexpr (sizeof(E) == 2) {
        return floats_of_half2(*reinterpret_cast<const uint32_t*>(at));
    } else {
        return *reinterpret_cast<const float2*>(at);
    }
}

template <class E, uint32_t kPositions>
struct LatentShared {
    Softmax merged[LATENT_HEADS];
    uint32_t word[16];
    union {
        float queries[LATENT_HEADS][LATENT_MAX_DIM];
        Softmax of_parts[MAX_PARTS * LATENT_HEADS];
    };
    float weights[LATENT_HEADS][kPositions];
    // Lanes that read 16 bytes of neighbouring positions use different banks.
    static constexpr uint32_t kPitch = LATENT_MAX_DIM + 16 / sizeof(E);
    alignas(16) E keys[kPositions][kPitch];
};

template <class E, uint32_t kPositions>
DEVICE void attend_latent(const AttendParams& p) {
    using Shared = LatentShared<E, kPositions>;
    static_assert(sizeof(Shared) <= LATENT_SHARED_BYTES, "the host asks for less");
    Shared& shared = *reinterpret_cast<Shared*>(shared_memory());
    const uint32_t head_dim = p.kv.head_dim, stride = p.kv.stride;
    // The step's tables are uploaded before its first kernel starts.
    uint32_t r = blockIdx.z, n_rows = p.step.counts->rows;
    StepRow row = p.step.rows[r];
    uint32_t seen = first_seen(row.pos, p.common.window), all = last_seen(p.common, r, row.pos) + 1;
    uint32_t n_positions = all - seen;
    uint32_t per_split = positions_of_split(n_positions, p.splits, kStride);
    uint32_t splits = (n_positions + per_split - 1) / per_split, split = blockIdx.y;
    uint32_t first = seen + split * per_split;
    uint32_t end = first + per_split < all ? first + per_split : all;
    uint32_t warp = threadIdx.x / kWarpSize, lane = threadIdx.x % kWarpSize;
    uint32_t tile = blockIdx.x, left = p.common.group - tile * LATENT_HEADS;
    uint32_t heads = left < LATENT_HEADS ? left : LATENT_HEADS;
    uint64_t first_head = uint64_t(r) * p.common.group + tile * LATENT_HEADS;
    let_next_kernel_start();
    wait_for_previous_kernel();
    // Multiprocessors without positions to read would be idle.
    prefetch_next(p.step);
    if (r >= n_rows || split >= splits) return;

    // Scores are in log2 units, so that weights are powers of two.
    const float factor = p.common.scale * 1.4426950408889634f;
    const float* q = p.common.q + first_head * head_dim;
    for (uint32_t i = threadIdx.x; i < heads * stride; i += blockDim.x) {
        uint32_t h = i / stride, e = i % stride;
        shared.queries[h][e] = e < head_dim ? q[h * head_dim + e] * factor : 0.0f;
    }
    Softmax soft = {-INFINITY, 0.0f};
    float2 values[kLatentPairs] = {};
    for (uint32_t base = first; base < end; base += kPositions) {
        uint32_t n = end - base < kPositions ? end - base : kPositions;
        for (uint32_t i = warp; i < n; i += blockDim.x / kWarpSize) {
            uint32_t pos = base + i;
            const E* key = reinterpret_cast<const E*>(kv_head(p.kv, page_of(p.step, row.seq, pos), 0, 0))
                + pos % PAGE_POSITIONS * stride;
            constexpr uint32_t kAtOnceElems = 16 / sizeof(E);
            for (uint32_t e = lane * kAtOnceElems; e < stride; e += kWarpSize * kAtOnceElems)
                cp_async16(shared.keys[i] + e, key + e);
        }
        cp_async_commit();
        cp_async_wait<0>();
        __syncthreads();
        // Uniform across lanes.
        if (warp < heads) {
            float score = -INFINITY;
            if (lane < n) {
                float sums[4] = {};
                for (uint32_t e = 0; e < stride; e += 8) {
                    Piece<E> piece;
                    piece.load(shared.keys[lane] + e);
                    float key[8];
                    piece.floats(key);
#pragma unroll
                    for (uint32_t i = 0; i < 8; i++)
                        sums[i % 4] = fmaf(shared.queries[warp][e + i], key[i], sums[i % 4]);
                }
                score = capped_score((sums[0] + sums[1]) + (sums[2] + sums[3]), score_cap(p.common));
            }
            float largest = fmaxf(soft.largest, reduce_lanes<Largest>(score, kWarpSize));
            float by = rescale(soft.largest, largest), weight = lane < n ? exp2_fast(score - largest) : 0.0f;
            soft = {largest, fmaf(soft.sum, by, reduce_lanes<Sum>(weight, kWarpSize))};
            if (lane < n) shared.weights[warp][lane] = weight;
            __syncwarp();
#pragma unroll
            for (uint32_t i = 0; i < kLatentPairs; i++) {
                values[i].x *= by;
                values[i].y *= by;
            }
            for (uint32_t j = 0; j < n; j++) {
                float of_key = shared.weights[warp][j];
#pragma unroll
                for (uint32_t i = 0; i < kLatentPairs; i++) {
                    uint32_t e = 2 * (lane + i * kWarpSize);
                    if (e >= stride) continue;
                    float2 two = two_elements(shared.keys[j] + e);
                    values[i].x = fmaf(of_key, two.x, values[i].x);
                    values[i].y = fmaf(of_key, two.y, values[i].y);
                }
            }
        }
        // The next keys overwrite these.
        __syncthreads();
    }

    uint64_t at = uint64_t(r) * p.head_tiles + tile;
    const float* sinks = p.common.sinks ? p.common.sinks + tile * LATENT_HEADS : nullptr;
    float* out = p.common.out + first_head * head_dim;
    Parts<LATENT_HEADS> parts{p.common.partial, p.common.arrived, at, splits, p.splits, stride, sinks};
    PartsAt<LATENT_HEADS> of_splits = parts.of_splits();
    if (warp < heads) {
        float sum = soft.sum + (sinks ? sink_weight(sinks[warp], soft.largest) : 0.0f);
        if (splits > 1 && lane == 0) of_splits.soft(split, warp) = soft;
#pragma unroll
        for (uint32_t i = 0; i < kLatentPairs; i++) {
            uint32_t e = 2 * (lane + i * kWarpSize);
            if (splits > 1) {
                if (e < stride) *reinterpret_cast<float2*>(of_splits.of(split, warp) + e) = values[i];
                continue;
            }
            if (e < head_dim) out[warp * head_dim + e] = values[i].x / sum;
            if (e + 1 < head_dim) out[warp * head_dim + e + 1] = values[i].y / sum;
        }
    }
    if (splits == 1 || !comes_last(p.common.arrived + at, splits, shared.word)) return;
    auto write = [&](uint32_t h, uint32_t e, float4 total, Softmax merged) {
        float sum = merged.sum + (sinks ? sink_weight(sinks[h], merged.largest) : 0.0f);
        float four[4] = {total.x, total.y, total.z, total.w};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            if (e + i < head_dim) out[h * head_dim + e + i] = four[i] / sum;
        }
    };
    // More parts in flight would need more registers than the block has.
    merge<kFewSplits>(of_splits, splits, heads, shared.of_parts, write);
}

RESIDENT_KERNEL(attend__f16__latent, AttendParams, LATENT_THREADS, 2) {
    attend_latent<uint16_t, LATENT_POSITIONS_F16>(p);
}
RESIDENT_KERNEL(attend__f32__latent, AttendParams, LATENT_THREADS, 2) {
    attend_latent<float, LATENT_POSITIONS_F32>(p);
}
