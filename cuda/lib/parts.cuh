// Merges partial attention results (split K): lane groups, warps and whole blocks each attend to some
// positions.
//
//   m = max m_i, w_i = 2^(m_i - m), out = sum w_i v_i / (sum w_i s_i + sink)
//
// for parts with largest score m_i (in log2 units), sum of weights s_i, and weighted values v_i. A head with
// an attention sink adds the sink's weight, as one more position without a value. Parts are [n, kHeads] of
// Softmax, then [n, kHeads, dim] of values, both in shared memory and in `partial`. `dim` is a multiple of 4.
//
// First, a warp owns a head and each lane some of its parts, to turn the softmaxes into weights. Then a
// thread owns four neighbouring elements, with loads of several parts in flight.
//
// Shared memory from offset 0: [kHeads] of Softmax for the merged result, a word that flags the last block,
// and 16 bytes after that word the parts of the lane groups.
#pragma once

#include "../params.h"
#include "../simt.h"
#include "last_block.cuh"
#include "reduce.cuh"

// A running softmax: the largest score in log2 units, and the sum of weights relative to it.
struct alignas(8) Softmax {
    float largest, sum;
};

// Factor that converts weights relative to `from` into weights relative to `to`, where to >= from.
DEVICE float rescale(float from, float to) {
    return from == to ? 1.0f : exp2_fast(from - to);
}

// A score after its soft cap, both in log2 units: cap tanh(score / cap). Without a cap, 0, the score itself.
DEVICE float capped_score(float score, float cap) {
    return cap > 0.0f ? cap * tanhf(score / cap) : score;
}

// The soft cap of scores in log2 units.
DEVICE float score_cap(const AttendCommon& common) {
    return common.soft_cap * 1.4426950408889634f;
}

// Weight of a head's sink, relative to `base`.
DEVICE float sink_weight(float sink, float base) {
    return exp2_fast(sink * 1.4426950408889634f - base);
}

// Merges the results of a warp's groups of `lanes` neighbouring lanes. Each lane holds kElems values of every
// head; afterwards the first group has the total.
template <uint32_t kHeads, uint32_t kElems>
DEVICE void join_groups(Softmax (&softs)[kHeads], float (&values)[kHeads][kElems], uint32_t lanes) {
    for (uint32_t mask = lanes; mask < kWarpSize; mask *= 2) {
#pragma unroll
        for (uint32_t h = 0; h < kHeads; h++) {
            Softmax other = {
                __shfl_xor_sync(kWarp, softs[h].largest, mask), __shfl_xor_sync(kWarp, softs[h].sum, mask)
            };
            float largest = fmaxf(softs[h].largest, other.largest);
            float by = rescale(softs[h].largest, largest), by_other = rescale(other.largest, largest);
            softs[h] = {largest, fmaf(other.sum, by_other, softs[h].sum * by)};
#pragma unroll
            for (uint32_t e = 0; e < kElems; e++) {
                float theirs = __shfl_xor_sync(kWarp, values[h][e], mask);
                values[h][e] = fmaf(theirs, by_other, values[h][e] * by);
            }
        }
    }
}

// Positions per split of a row (the last may have fewer): a multiple of `unit`, for at most `most` splits.
DEVICE uint32_t positions_of_split(uint32_t n_positions, uint32_t most, uint32_t unit) {
    uint32_t split = (n_positions + most - 1) / most;
    if (split < ATTEND_LEAST) split = n_positions < ATTEND_WHOLE ? ATTEND_WHOLE : ATTEND_LEAST;
    return (split + unit - 1) / unit * unit;
}

// Addresses of n parts of up to kHeads query heads.
template <uint32_t kHeads>
struct PartsAt {
    Softmax* softs;
    float* values;
    uint32_t dim;

    DEVICE PartsAt(float* at, uint32_t n, uint32_t dim)
        : softs(reinterpret_cast<Softmax*>(at)), values(at + 2 * n * kHeads), dim(dim) {}
    DEVICE Softmax& soft(uint32_t part, uint32_t head) const { return softs[part * kHeads + head]; }
    DEVICE float* of(uint32_t part, uint32_t head) const {
        return values + (uint64_t(part) * kHeads + head) * dim;
    }
};

// Parts of a block's warps or lane groups, in shared memory. A part without positions has sum and values 0.
template <uint32_t kHeads>
DEVICE PartsAt<kHeads> parts_of_groups(uint32_t groups, uint32_t dim) {
    return {reinterpret_cast<float*>(shared_memory()) + 2 * kHeads + 4, groups, dim};
}

// Parts of the blocks that share one row and up to kHeads query heads.
template <uint32_t kHeads>
struct Parts {
    // [.., kHeads, max_splits, 2 + dim]: the parts of each group of blocks.
    float* partial;
    // Counter of arrived blocks; 0 between launches.
    uint32_t* arrived;
    // Index of this group of blocks.
    uint64_t at;
    // Number of splits, and number that there is room for.
    uint32_t splits, max_splits;
    uint32_t dim;
    // One per query head, or null.
    const float* sinks;

    DEVICE PartsAt<kHeads> of_splits() const {
        return {partial + at * kHeads * max_splits * (2 + dim), max_splits, dim};
    }
};

// Merges n parts, with the loads of N of them in flight per thread. Calls write(head, element, four values,
// softmax) for every fourth element of each head. `weights` has room for n parts, rounded up to N; it may
// overlap the softmaxes. The caller has synchronised the block.
template <uint32_t N, uint32_t kHeads, class Write>
DEVICE void merge(
    const PartsAt<kHeads>& from, uint32_t n, uint32_t heads, Softmax* weights, Write write
) {
    static_assert(MAX_PARTS % N == 0, "weights of parts that are not there");
    Softmax* merged = reinterpret_cast<Softmax*>(shared_memory());
    uint32_t dim = from.dim, quads = heads * dim / 4, rounded = (n + N - 1) / N * N;
    float4 values[N];
    // Past the end, loads the last part again, with weight 0.
    auto load = [&](uint32_t at, uint32_t first) {
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            uint32_t part = first + i < n ? first + i : n - 1;
            values[i] = *reinterpret_cast<const float4*>(from.of(part, 0) + 4 * at);
        }
    };
    // Starts the first loads before the weights are computed.
    if (threadIdx.x < quads) load(threadIdx.x, 0);
    for (uint32_t h = threadIdx.x / kWarpSize; h < heads; h += blockDim.x / kWarpSize) {
        constexpr uint32_t kOwn = (MAX_PARTS + kWarpSize - 1) / kWarpSize;
        uint32_t lane = threadIdx.x % kWarpSize;
        Softmax mine[kOwn];
        float largest = -INFINITY, sum = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < kOwn; i++) {
            uint32_t part = i * kWarpSize + lane;
            mine[i] = {-INFINITY, 0.0f};
            // Most rows have few parts; the others cost one warp-uniform branch.
            if (i * kWarpSize >= rounded) continue;
            if (part < n) mine[i] = from.soft(part, h);
            largest = fmaxf(largest, mine[i].largest);
        }
        largest = reduce_lanes<Largest>(largest, kWarpSize);
#pragma unroll
        for (uint32_t i = 0; i < kOwn; i++) {
            if (i * kWarpSize >= rounded) continue;
            uint32_t part = i * kWarpSize + lane;
            // A part without positions has weight 0.
            float by = mine[i].sum == 0.0f ? 0.0f : rescale(mine[i].largest, largest);
            sum = fmaf(mine[i].sum, by, sum);
            if (part < rounded) weights[part * kHeads + h].largest = by;
        }
        sum = reduce_lanes<Sum>(sum, kWarpSize);
        if (lane == 0) merged[h] = {largest, sum};
    }
    __syncthreads();
    for (uint32_t at = threadIdx.x; at < quads; at += blockDim.x) {
        uint32_t h = 4 * at / dim;
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (uint32_t first = 0; first < n; first += N) {
            if (first > 0 || at != threadIdx.x) load(at, first);
#pragma unroll
            for (uint32_t i = 0; i < N; i++) {
                float by = weights[(first + i) * kHeads + h].largest;
                total.x = fmaf(values[i].x, by, total.x);
                total.y = fmaf(values[i].y, by, total.y);
                total.z = fmaf(values[i].z, by, total.z);
                total.w = fmaf(values[i].w, by, total.w);
            }
        }
        write(h, 4 * at % dim, total, merged[h]);
    }
}

// Parts whose loads are in flight at a time, for a block's groups and for splits; beyond a few splits, as
// many as there are registers for.
constexpr uint32_t kGroupsAtOnce = 4, kFewSplits = 8, kSplitsAtOnce = 16;

// Merges the parts of a block's groups. With one split that is the result; otherwise each block stores its
// part, and the last to arrive merges them. Calls write(head, element, value) for the result; returns true in
// the block that wrote it.
template <uint32_t kHeads, class Write>
DEVICE bool merge_parts(
    const Parts<kHeads>& p, uint32_t split, uint32_t groups, uint32_t heads, Write write
) {
    auto result = [&](uint32_t h, uint32_t e, float4 total, Softmax soft) {
        if (p.sinks) soft.sum += sink_weight(p.sinks[h], soft.largest);
        write(h, e, total.x / soft.sum);
        write(h, e + 1, total.y / soft.sum);
        write(h, e + 2, total.z / soft.sum);
        write(h, e + 3, total.w / soft.sum);
    };
    PartsAt<kHeads> of_groups = parts_of_groups<kHeads>(groups, p.dim), of_splits = p.of_splits();
    __syncthreads();
    if (p.splits == 1) {
        merge<kGroupsAtOnce>(of_groups, groups, heads, of_groups.softs, result);
        return true;
    }
    auto leave = [&](uint32_t h, uint32_t e, float4 total, Softmax soft) {
        if (e == 0) of_splits.soft(split, h) = soft;
        *reinterpret_cast<float4*>(of_splits.of(split, h) + e) = total;
    };
    merge<kGroupsAtOnce>(of_groups, groups, heads, of_groups.softs, leave);
    uint32_t* word = reinterpret_cast<uint32_t*>(shared_memory()) + 2 * kHeads;
    if (!comes_last(p.arrived + p.at, p.splits, word)) return false;
    // The groups' parts are no longer needed.
    if (p.splits <= kFewSplits) {
        merge<kFewSplits>(of_splits, p.splits, heads, of_groups.softs, result);
    } else {
        merge<kSplitsAtOnce>(of_splits, p.splits, heads, of_groups.softs, result);
    }
    return true;
}
