// Attend: out[r] = softmax(cap(scale q[r] . K[first ..= last])) V over the row's own sequence, row by row,
// with cap(z) = c tanh(z / c) if there is a soft cap. `first` is 0 or the start of the sliding window; `last`
// is the row's own position, or later if rows attend ahead. Positions outside are not read. A head's
// attention sink is one more term in the sum of the softmax.
//
// Split-K flash decoding. A block owns one batch row, one KV head with up to ATTEND_HEADS of its query heads,
// and one split of the positions: x = KV head and tile of query heads, y = split, z = row. So each key and
// value is read once for all query heads of a tile. Splits are multiples of kStride positions; their number
// is computed on the device from the positions of the row.
//
// A group of lanes has one lane per 16-byte piece of an f16 vector, rounded up to a power of two. Each group
// processes its own positions, kAtOnce at a time, with its own softmax: largest score, sum of weights, and
// weighted values, of which each lane keeps 8 elements per query head. Queries stay in shared memory, so that
// registers suffice for two blocks per multiprocessor. While a round is multiplied, the keys and values of
// the next round are loaded, and the page numbers of the one after. Groups are merged by shuffles within a
// warp, and through shared memory across warps. With one split the block writes the result;
// otherwise it stores its part in `partial`, and the last block to arrive merges the parts.
//
// For heads of more than 256 elements each lane has a second piece, 256 elements after its first.
//
// Reads 2 x head_dim elements per position and KV head. Requires head_dim <= 256 kPieces, pages of
// PAGE_POSITIONS, zeros after each vector up to the stride, and `arrived` = 0.
#pragma once

#include "../lib/over_cache.cuh"
#include "../lib/parts.cuh"
#include "../lib/quad.cuh"
#include "../lib/reduce.cuh"
#include "../lib/step.cuh"

// Eight neighbouring elements of a cached vector.
template <class E>
struct Piece;

template <>
struct Piece<uint16_t> {
    uint4 bits;
    DEVICE void load(const uint16_t* at) { bits = load16(at); }
    // The first or the second half.
    DEVICE void four(uint32_t half, float (&out)[4]) const {
        float2 low = floats_of_half2(half ? bits.z : bits.x), high = floats_of_half2(half ? bits.w : bits.y);
        out[0] = low.x;
        out[1] = low.y;
        out[2] = high.x;
        out[3] = high.y;
    }
    DEVICE void floats(float (&out)[8]) const {
        uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 two = floats_of_half2(words[i]);
            out[2 * i] = two.x;
            out[2 * i + 1] = two.y;
        }
    }
};

template <>
struct Piece<float> {
    uint4 bits[2];
    DEVICE void load(const float* at) {
        bits[0] = load16(at);
        bits[1] = load16(at + 4);
    }
    DEVICE void four(uint32_t half, float (&out)[4]) const {
        out[0] = __uint_as_float(bits[half].x);
        out[1] = __uint_as_float(bits[half].y);
        out[2] = __uint_as_float(bits[half].z);
        out[3] = __uint_as_float(bits[half].w);
    }
    DEVICE void floats(float (&out)[8]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            out[4 * i] = __uint_as_float(bits[i].x);
            out[4 * i + 1] = __uint_as_float(bits[i].y);
            out[4 * i + 2] = __uint_as_float(bits[i].z);
            out[4 * i + 3] = __uint_as_float(bits[i].w);
        }
    }
};

// Splits are multiples of this number of positions.
constexpr int kStride = 16;

// Positions per group of lanes and round.
template <class E>
constexpr uint32_t kAtOnce = sizeof(E) == 2 ? 2 : 1;

// A group's keys and values of a round.
template <class E, uint32_t kPieces>
struct Round {
    Piece<E> keys[kAtOnce<E>][kPieces], values[kAtOnce<E>][kPieces];
};

// The queries of a block in shared memory: [ATTEND_HEADS, kPieces, 2, lanes] of float4. A lane reads 8
// elements per piece, in two halves, so that neighbouring lanes read neighbouring addresses.
struct LaneQueries {
    // Of the lane: the first half of its first piece of the first head.
    const float4* at;
    uint32_t lanes;

    template <uint32_t kPieces>
    DEVICE float4 of(uint32_t head, uint32_t piece, uint32_t half) const {
        return at[((head * kPieces + piece) * 2 + half) * lanes];
    }
};

// Running result of a group: a lane has 8 elements of each of its pieces per query head.
template <uint32_t kPieces>
struct GroupState {
    static constexpr uint32_t kOwn = 8 * kPieces;
    float values[ATTEND_HEADS][kOwn];
    Softmax soft[ATTEND_HEADS];

    // Adds a round's positions; those with `there` false are ignored. All lanes of a warp call it together.
    template <class E>
    DEVICE void take(
        const LaneQueries& queries, const Round<E, kPieces>& round, const bool (&there)[kAtOnce<E>],
        float cap
    ) {
        float scores[kAtOnce<E>][ATTEND_HEADS] = {};
#pragma unroll
        for (uint32_t at = 0; at < 2 * kPieces; at++) {
            float k[kAtOnce<E>][4];
#pragma unroll
            for (uint32_t i = 0; i < kAtOnce<E>; i++) round.keys[i][at / 2].four(at % 2, k[i]);
#pragma unroll
            for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
                float4 query = queries.of<kPieces>(h, at / 2, at % 2);
#pragma unroll
                for (uint32_t i = 0; i < kAtOnce<E>; i++) {
                    scores[i][h] = fmaf(query.x, k[i][0], scores[i][h]);
                    scores[i][h] = fmaf(query.y, k[i][1], scores[i][h]);
                    scores[i][h] = fmaf(query.z, k[i][2], scores[i][h]);
                    scores[i][h] = fmaf(query.w, k[i][3], scores[i][h]);
                }
            }
        }
        for (uint32_t mask = queries.lanes / 2; mask > 0; mask /= 2) {
#pragma unroll
            for (uint32_t i = 0; i < kAtOnce<E>; i++) {
#pragma unroll
                for (uint32_t h = 0; h < ATTEND_HEADS; h++)
                    scores[i][h] += __shfl_xor_sync(kWarp, scores[i][h], mask);
            }
        }
        // One branch for all scores.
        if (cap > 0.0f) {
#pragma unroll
            for (uint32_t i = 0; i < kAtOnce<E>; i++) {
#pragma unroll
                for (uint32_t h = 0; h < ATTEND_HEADS; h++) scores[i][h] = capped_score(scores[i][h], cap);
            }
        }
#pragma unroll
        for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
            float largest = soft[h].largest;
#pragma unroll
            for (uint32_t i = 0; i < kAtOnce<E>; i++) {
                scores[i][h] = there[i] ? scores[i][h] : -INFINITY;
                largest = fmaxf(largest, scores[i][h]);
            }
            float by = rescale(soft[h].largest, largest);
            soft[h] = {largest, soft[h].sum * by};
#pragma unroll
            for (uint32_t e = 0; e < kOwn; e++) values[h][e] *= by;
        }
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce<E>; i++) {
            if (!there[i]) continue;
            float weights[ATTEND_HEADS];
#pragma unroll
            for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
                weights[h] = exp2_fast(scores[i][h] - soft[h].largest);
                soft[h].sum += weights[h];
            }
#pragma unroll
            for (uint32_t piece = 0; piece < kPieces; piece++) {
                float v[8];
                round.values[i][piece].floats(v);
#pragma unroll
                for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
#pragma unroll
                    for (uint32_t e = 0; e < 8; e++)
                        values[h][8 * piece + e] = fmaf(weights[h], v[e], values[h][8 * piece + e]);
                }
            }
        }
    }
};

template <class E, uint32_t kPieces>
DEVICE void attend(const AttendParams& p) {
    const uint32_t head_dim = p.kv.head_dim, stride = p.kv.stride;
    // The step's tables are uploaded before its first kernel starts.
    uint32_t r = blockIdx.z, n_rows = p.step.counts->rows;
    StepRow row = p.step.rows[r];
    uint32_t seen = first_seen(row.pos, p.common.window), all = last_seen(p.common, r, row.pos) + 1;
    uint32_t n_positions = all - seen;
    uint32_t per_split = positions_of_split(n_positions, p.splits, kStride);
    uint32_t splits = (n_positions + per_split - 1) / per_split, split = blockIdx.y;
    bool exists = r < n_rows && split < splits;
    uint32_t first = seen + split * per_split;
    uint32_t end = first + per_split < all ? first + per_split : all;

    uint32_t kv_head_at = blockIdx.x / p.head_tiles, tile = blockIdx.x % p.head_tiles;
    uint32_t heads = p.common.group - tile * ATTEND_HEADS < ATTEND_HEADS
        ? p.common.group - tile * ATTEND_HEADS
        : ATTEND_HEADS;
    uint64_t first_head = (uint64_t(r) * p.kv.n_kv_heads + kv_head_at) * p.common.group + tile * ATTEND_HEADS;
    const float* q = p.common.q + first_head * head_dim;
    float* out = p.common.out + first_head * head_dim;

    uint32_t lanes = 1;
    while (lanes * 8 * kPieces < stride) lanes *= 2;
    uint32_t sub = threadIdx.x & (lanes - 1), group = threadIdx.x / lanes, groups = blockDim.x / lanes;
    uint32_t positions = groups * kAtOnce<E>;
    // First element of a piece of this lane.
    auto piece_at = [&](uint32_t piece) { return 8 * (sub + piece * lanes); };

    uint32_t pages[kAtOnce<E>] = {};
    auto find = [&](uint32_t base) {
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce<E>; i++) {
            uint32_t pos = base + i * groups + group;
            if (pos < end) pages[i] = page_of(p.step, row.seq, pos);
        }
    };
    auto load = [&](Round<E, kPieces>& to, uint32_t base) {
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce<E>; i++) {
            uint32_t pos = base + i * groups + group;
#pragma unroll
            for (uint32_t piece = 0; piece < kPieces; piece++) {
                uint32_t elem = piece_at(piece), place = pos % PAGE_POSITIONS * stride + elem;
                Piece<E>&key = to.keys[i][piece], &value = to.values[i][piece];
                key = value = {};
                if (pos >= end || elem >= stride) continue;
                key.load(reinterpret_cast<const E*>(kv_head(p.kv, pages[i], 0, kv_head_at)) + place);
                value.load(reinterpret_cast<const E*>(kv_head(p.kv, pages[i], 1, kv_head_at)) + place);
            }
        }
    };
    if (exists) find(first);
    let_next_kernel_start();
    wait_for_previous_kernel();
    // Multiprocessors without positions to read would be idle.
    prefetch_next(p.step);
    if (!exists) return;

    Round<E, kPieces> even, odd;
    load(even, first);
    find(first + positions);
    // Scores are in log2 units, so that weights are powers of two.
    const float factor = p.common.scale * 1.4426950408889634f;
    float4* queries = reinterpret_cast<float4*>(shared_memory());
    for (uint32_t i = group; i < ATTEND_HEADS * kPieces * 2; i += groups) {
        uint32_t h = i / (2 * kPieces), elem = piece_at(i / 2 % kPieces) + i % 2 * 4;
        float four[4] = {};
        if (h < heads && elem < head_dim) load_quad<false>(q + h * head_dim, elem, head_dim, four);
        queries[i * lanes + sub] =
            make_float4(four[0] * factor, four[1] * factor, four[2] * factor, four[3] * factor);
    }
    __syncthreads();
    constexpr uint32_t kOwn = GroupState<kPieces>::kOwn;
    GroupState<kPieces> state = {};
#pragma unroll
    for (uint32_t h = 0; h < ATTEND_HEADS; h++) state.soft[h] = {-INFINITY, 0.0f};

    // All lanes of a warp run the same number of rounds, because they exchange scores.
    auto round = [&](const Round<E, kPieces>& now, Round<E, kPieces>& next, uint32_t base) {
        load(next, base + positions);
        find(base + 2 * positions);
        bool there[kAtOnce<E>];
#pragma unroll
        for (uint32_t i = 0; i < kAtOnce<E>; i++) there[i] = base + i * groups + group < end;
        // Hides the address, so that queries are not kept in registers from one round to the next.
        LaneQueries of_lane{queries + recomputed(sub), lanes};
        state.take(of_lane, now, there, score_cap(p.common));
    };
    for (uint32_t base = first; base < end; base += 2 * positions) {
        round(even, odd, base);
        if (base + positions >= end) break;
        round(odd, even, base + positions);
    }

    join_groups(state.soft, state.values, lanes);
    // The parts take the place of the queries.
    __syncthreads();
    uint32_t warp = threadIdx.x / kWarpSize, warps = blockDim.x / kWarpSize;
    PartsAt<ATTEND_HEADS> parts = parts_of_groups<ATTEND_HEADS>(warps, stride);
#pragma unroll
    for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
        if (threadIdx.x % kWarpSize >= lanes) break;
        if (sub == 0) parts.soft(warp, h) = state.soft[h];
#pragma unroll
        for (uint32_t i = 0; i < kOwn; i += 4) {
            uint32_t elem = piece_at(i / 8) + i % 8;
            const float* four = state.values[h] + i;
            if (elem < stride)
                *reinterpret_cast<float4*>(parts.of(warp, h) + elem) =
                    make_float4(four[0], four[1], four[2], four[3]);
        }
    }
    uint64_t at = (uint64_t(r) * p.kv.n_kv_heads + kv_head_at) * p.head_tiles + tile;
    const float* sinks =
        p.common.sinks ? p.common.sinks + kv_head_at * p.common.group + tile * ATTEND_HEADS : nullptr;
    Parts<ATTEND_HEADS> from{p.common.partial, p.common.arrived, at, splits, p.splits, stride, sinks};
    merge_parts(from, split, warps, heads, [&](uint32_t h, uint32_t e, float value) {
        if (e < head_dim) out[h * head_dim + e] = value;
    });
}
