// Keys as 2-bit codes and the signs of a residual: r = y - norm c is projected by signs and a Hadamard
// matrix, S = H D, and the signs of S r are stored with its length. So <q, y> = norm <q, c> + factor length
// <S q, sign(S r)>, which is unbiased.
//
// The second product counts bits: S q is rounded to 255 steps of its largest element and split into eight
// bit-planes Q_b, and sum_b w_b (2 popc(Q_b & signs) - popc(Q_b)), with w_b = 2^b but w_7 = -128, is exactly
// the product of its bytes with the signs.
//
// The first product uses dp4a: by bit-planes it would take 31 instructions more per head and position (SASS
// of sm_90, nvcc 13). Signs as bytes for dp4a would take 8 fewer than counting.
#pragma once

#include "codes.cuh"
#include "rotate.cuh"

CONSTANT(SignsParams, signs_params, CODES_DIMS);

DEVICE const SignsParams& signs_of(uint32_t head_dim) {
    return signs_params[__popc(head_dim / CODES_MIN_DIM - 1)];
}

// A lane's share of the projection of a query.
struct ProjectedQuery {
    // Half of the planes of the word of signs for the lane's piece, and the value to subtract from twice
    // their count.
    uint32_t planes[4];
    int32_t ones;
    // Weight of the first of these planes.
    float step;
};

// A vector is n_pieces words of codes, then n_pieces / 2 words of signs: one bit per element, 1 if it is not
// negative. Its two scales are the norm, and the length of the residual. Two lanes share a word of signs;
// each counts half of the planes.
struct CodesAndSigns {
    static constexpr uint32_t kBits = 2, kVectorBits = 3, kScales = 2;
    static constexpr bool kGroups = false, kSearched = false;
    using Query = ProjectedQuery;
    struct Piece {
        uint32_t low, signs;
    };

    DEVICE static Piece load(const uint8_t* vector, uint32_t n_pieces, uint32_t piece) {
        const uint32_t* words = reinterpret_cast<const uint32_t*>(vector);
        return {words[piece], words[n_pieces + piece / 2]};
    }

    DEVICE static void pack(uint8_t* vector, uint32_t, uint32_t piece, const uint8_t* codes) {
        reinterpret_cast<uint32_t*>(vector)[piece] = pack_low(codes);
    }

    DEVICE static void bytes(const Piece& piece, const uint32_t (&table)[2], uint32_t (&out)[4]) {
#pragma unroll
        for (uint32_t g = 0; g < 4; g++) out[g] = __byte_perm(table[0], 0, select_low(piece.low, g));
    }

    // Projects a residual and stores its signs. All lanes of a warp call it.
    DEVICE static void pack_signs(uint8_t* vector, uint32_t head_dim, Vector& residual) {
        flip(residual, signs_of(head_dim));
        hadamard(residual);
        uint32_t* words = reinterpret_cast<uint32_t*>(vector) + head_dim / CODES_PIECE;
#pragma unroll
        for (uint32_t j = 0; j < kLaneElems; j++) {
            if (j >= residual.n) continue;
            uint32_t word = __ballot_sync(kWarp, residual.x[j] >= 0.0f);
            if (threadIdx.x % kWarpSize == 0) words[j] = word;
        }
    }

    // Projects queries, [ATTEND_HEADS, head_dim], and splits them into bit-planes: `to` gets [ATTEND_HEADS,
    // 8, head_dim / 32] words, then one step size per query. A warp owns a query.
    DEVICE static void project(const float* queries, uint32_t head_dim, float* to) {
        const SignsParams& params = signs_of(head_dim);
        uint32_t* words = reinterpret_cast<uint32_t*>(to);
        float* steps = to + ATTEND_HEADS * 8 * (head_dim / kWarpSize);
        for (uint32_t h = threadIdx.x / kWarpSize; h < ATTEND_HEADS; h += blockDim.x / kWarpSize) {
            Vector v = load_vector(queries + h * head_dim, head_dim);
            flip(v, params);
            hadamard(v);
            float most = 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < kLaneElems; j++) most = fmaxf(most, fabsf(v.x[j]));
            most = reduce_lanes<Max>(most, kWarpSize);
            float to_bytes = most > 0.0f ? 127.0f / most : 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < kLaneElems; j++) {
                if (j >= v.n) continue;
                uint32_t rounded = uint32_t(int32_t(rintf(v.x[j] * to_bytes)));
                for (uint32_t b = 0; b < 8; b++) {
                    uint32_t word = __ballot_sync(kWarp, (rounded >> b & 1u) != 0);
                    if (threadIdx.x % kWarpSize == 0) words[(h * 8 + b) * v.n + j] = word;
                }
            }
            if (threadIdx.x % kWarpSize == 0) steps[h] = most / 127.0f * params.factor;
        }
    }

    DEVICE static Query query(const float* from, uint32_t head_dim, uint32_t h, uint32_t piece) {
        uint32_t n = head_dim / kWarpSize, upper = piece % 2;
        const uint32_t* words = reinterpret_cast<const uint32_t*>(from) + h * 8 * n;
        Query q;
#pragma unroll
        for (uint32_t b = 0; b < 4; b++) q.planes[b] = words[(4 * upper + b) * n + piece / 2];
        q.ones = count(q, 0xffffffffu, piece);
        q.step = from[ATTEND_HEADS * 8 * n + h] * (upper ? 16.0f : 1.0f);
        return q;
    }

    // Number of ones of the lane's planes among the signs, each weighted relative to the first plane.
    DEVICE static int32_t count(const Query& q, uint32_t signs, uint32_t piece) {
        int32_t top = piece % 2 ? -8 : 8;
        return int32_t(__popc(q.planes[0] & signs)) + 2 * int32_t(__popc(q.planes[1] & signs)) +
            4 * int32_t(__popc(q.planes[2] & signs)) + top * int32_t(__popc(q.planes[3] & signs));
    }
};

// Keys in codes and signs, values in 3-bit codes.
struct KeysWithSigns {
    using Keys = CodesAndSigns;
    using Values = Codes3;
    DEVICE static Book key_book(const CodedKvParams& kv) {
        const SignsParams& params = signs_of(kv.head_dim);
        return {params.borders, params.magnitudes, params.table, params.unit};
    }
    DEVICE static void key_table(const CodedKvParams& kv, uint32_t, uint32_t, uint32_t (&to)[2]) {
        const SignsParams& params = signs_of(kv.head_dim);
        to[0] = params.table[0];
        to[1] = params.table[1];
    }
    DEVICE static Vector load(const CodedKvParams& kv, const float* from, uint32_t, Part) {
        return load_rotated(kv, from);
    }
};
