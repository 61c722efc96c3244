// Q4_K and Q5_K: 256 integers of 4 or 5 bits in 8 groups of 32, each with a 6-bit scale and a 6-bit minimum;
// value = q * group scale * scale - group minimum * scale of the minimums.
//
// Weights are in octets (lib/octets.cuh). A chunk is 32 elements: the first or the last 16 of two
// neighbouring groups. An octet has
//
//   low 4 bits: run p has groups 2 p in low nibbles and 2 p + 1 in high nibbles, a chunk per piece
//   heads, 16 bytes per row: the f16 scales of scales and of minimums, then the groups' scales and minimums,
//   packed as in the file
//   Q5_K: the fifth bits, a word per chunk, [4 runs, 8 rows, 2 chunks]: quad i of group g is bit 4 g + i of
//   each byte
#pragma once

#include "../lib/affine.cuh"
#include "../lib/octets.cuh"

struct Q4K;
template <>
constexpr bool kOfKinds<Q4K> = true;
template <>
constexpr bool kOffsets<Q4K> = true;
template <>
constexpr bool kPartOfTwo<Q4K> = true;
template <>
constexpr bool kNibbles<Q4K> = true;

struct Q4K : AffineCodes<Q4K, 32, 16> {
    static constexpr int kUnroll = 2;
    // lib/by_block.cuh
    static constexpr bool kHalves = true;
    // Nonzero if there are fifth bits (Q5_K).
    using Kind = uint32_t;
    struct Row : OctetRow {
        Kind kind;
    };
    struct Chunk {
        uint4 low, head;
        uint32_t high;
    };

    DEVICE static constexpr bool has_high(Kind kind) { return kind; }
    DEVICE static Kind kind(const LinearParams& w) { return w.kind; }

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 64 * 2 + col % 32 / 16;
        elem = col % 64 / 32 * 16 + col % 16;
    }

    static constexpr uint32_t kHeads = 4 * kRunBytes, kHigh = kHeads + 16 * OCTET_ROWS;
    DEVICE static constexpr uint32_t octet_bytes(Kind kind) {
        return kHigh + (has_high(kind) ? 32 * OCTET_ROWS : 0);
    }

    // Row 0 to 7 of octets.
    DEVICE static Row row_of(const uint8_t* octets, uint32_t row, Kind kind) { return {{octets, row}, kind}; }
    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        uint64_t eight = uint64_t(row / OCTET_ROWS) * (w.chunks / 8);
        return row_of(w.data + eight * octet_bytes(kind(w)), row % OCTET_ROWS, kind(w));
    }
    // Fifth bits of a chunk in an octet.
    DEVICE static const uint8_t* high_of(const uint8_t* octet, uint32_t row, uint32_t chunk) {
        return octet + kHigh + chunk / 2 * 64 + row * 8 + chunk % 2 * 4;
    }

    // A lane's chunks are at distances of a multiple of 8 (lib/linear.cuh), so it has the same place in each
    // octet.
    DEVICE static Chunk load(Row row, uint32_t chunk) {
        const uint8_t* octet = row.octets + chunk / 8 * octet_bytes(row.kind);
        uint32_t own = threadIdx.x % 8;
        return {load_stream16(octet + row.piece(own / 2, own % 2)), load16(octet + kHeads + row.row * 16),
                has_high(row.kind) ? load4(high_of(octet, row.row, own)) : 0};
    }

    // Scale and offset of each group of a chunk.
    DEVICE static void affine_of(uint4 head, uint32_t chunk, Affine (&out)[2]) {
        uint32_t shift = chunk / 2 % 2 * 16, y = head.y >> shift, z = head.z >> shift, w = head.w >> shift;
        bool last = chunk % 8 >= 4;
        uint32_t scales = last ? (w & 0x0f0fu) | (y >> 2 & 0x3030u) : y & 0x3f3fu;
        uint32_t mins = last ? (w >> 4 & 0x0f0fu) | (z >> 2 & 0x3030u) : z & 0x3f3fu;
        float of_groups[4];
        floats_of_codes((scales & 0xffffu) | mins << 16, of_groups);
        float2 of_block = floats_of_half2(head.x);
#pragma unroll
        for (int group = 0; group < 2; group++)
            out[group] = {of_block.x * of_groups[group], -of_block.y * of_groups[2 + group]};
    }
    DEVICE static Affine affine(const Chunk& chunk, uint32_t at, Kind, uint32_t group) {
        Affine both[2];
        affine_of(chunk.head, at, both);
        return group ? both[1] : both[0];
    }

    DEVICE static uint32_t bytes(const Chunk& chunk, uint32_t quad, Kind) {
        uint32_t words[4] = {chunk.low.x, chunk.low.y, chunk.low.z, chunk.low.w};
        uint32_t low = words[quad % 4] >> (quad / 4 * 4) & 0x0f0f0f0fu;
        return low | bits_of_quad(chunk.high, quad, 4);
    }

    // lib/block_codes.cuh
    using Codes = AffineWords;
    struct Part {
        uint32_t low[2], high[2];
        uint4 head;
    };
    DEVICE static Part part(Row row, uint32_t block, uint32_t member, Kind kind) {
        Part out;
        const uint8_t* octet = row.octets + block / 8 * octet_bytes(kind);
        uint32_t run = block % 8 / 2;
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            out.low[t] = load4(octet + row.piece(run, t) + 4 * member);
            out.high[t] = 0;
        }
        out.head = load16(octet + kHeads + row.row * 16);
        if (has_high(kind)) {
            uint2 high = load8(high_of(octet, row.row, 2 * run));
            out.high[0] = high.x;
            out.high[1] = high.y;
        }
        return out;
    }
    DEVICE static Codes codes(const Part& part, uint32_t block, uint32_t member, Kind kind) {
        Affine both[2];
        affine_of(part.head, block / 2 * 2, both);
        uint32_t group = block % 2;
        Codes out;
        out.affine = group ? both[1] : both[0];
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) out.words[t] = part.low[t] >> (4 * group) & 0x0f0f0f0fu;
        if (has_high(kind)) {
#pragma unroll
            for (uint32_t t = 0; t < 2; t++)
                out.words[t] |= bits_of_quad(part.high[t], 4 * group + member, 4);
        }
        return out;
    }

    // lib/linear_octets.cuh: writes the scales of groups 4 half .. 4 half + 3 of a row to `to`, for codes in
    // place if there are no fifth bits, their minimums to `to + 8`, and the factor of these to `to[16]`.
    using Head = uint4;
    DEVICE static Head octet_head(const Row& row, uint32_t) {
        return load16(row.octets + kHeads + row.row * 16);
    }
    DEVICE static void octet_scales(const Head& head, uint32_t half, Kind kind, float* to) {
        uint32_t scales = head.y & 0x3f3f3f3fu, mins = head.z & 0x3f3f3f3fu;
        if (half) {
            scales = (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u);
            mins = (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u);
        }
        // The minimums' scale with the opposite sign.
        float2 of_block = floats_of_half2(head.x ^ 0x80000000u);
        float high = has_high(kind) ? of_block.x : of_block.x * 0.0625f;
        float of_scales[4], of_mins[4];
        floats_of_codes_times(scales, of_block.x, high, of_scales);
        floats_of_codes(mins, of_mins);
        store4(to + 4 * half, of_scales[0], of_scales[1], of_scales[2], of_scales[3]);
        store4(to + 8 + 4 * half, of_mins[0], of_mins[1], of_mins[2], of_mins[3]);
        to[16] = of_block.y;
    }
    // The codes of one of the two groups of a part, in place.
    DEVICE static void nibbles(const Part& part, uint32_t group, uint32_t (&out)[2]) {
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) out[t] = part.low[t] & (group ? 0xf0f0f0f0u : 0x0f0f0f0fu);
    }

    // lib/linear_octets_many.cuh, without fifth bits
    static constexpr uint32_t kStages = 2, kMore = 0, kMoreBytes = 0;
    DEVICE static void stage_codes(
        const uint8_t* const (&halves)[2], uint32_t block, uint32_t (&out)[2]
    ) {
#pragma unroll
        for (uint32_t t = 0; t < 2; t++)
            out[t] = load4(halves[t] + block / 2 * kRunBytes) & (block % 2 ? 0xf0f0f0f0u : 0x0f0f0f0fu);
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        Row at = Q4K::row(w, row);
        uint32_t chunk, elem;
        place(col, chunk, elem);
        const uint8_t* octet = at.octets + chunk / 8 * octet_bytes(at.kind);
        uint32_t in_octet = chunk % 8, group = elem / 16, b = elem % 16;
        uint32_t code = octet[at.piece(in_octet / 2, in_octet % 2) + b] >> (4 * group) & 15u;
        if (has_high(at.kind))
            code |= (high_of(octet, at.row, in_octet)[b % 4] >> (elem / 4) & 1u) << 4;
        Affine both[2];
        affine_of(load16(octet + kHeads + at.row * 16), chunk, both);
        Affine affine = group ? both[1] : both[0];
        return fmaf(static_cast<float>(code), affine.scale, affine.offset);
    }
};
