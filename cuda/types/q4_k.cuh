// Q4_K and Q5_K: 256 integers of 4 or 5 bits in 8 groups of 32, each with a 6-bit scale and a 6-bit minimum;
// value = q * group scale * scale - group minimum * scale of the minimums.
//
// The upload splits blocks into planes. A chunk is 32 elements: the first or the last 16 of two neighbouring
// groups. Planes, each over all rows:
//
//   low 4 bits, 16 bytes per chunk: the first group in low nibbles, the second in high nibbles
//   heads, 16 bytes per block of 8 chunks: the f16 scales of scales and of minimums, then the groups' scales
//   and minimums, packed as in the file
//   Q5_K: the fifth bits, a word per chunk: quad i of group g is bit 4 g + i of each byte
#pragma once

#include "../lib/affine.cuh"

struct Q4K;
template <>
constexpr bool kOfKinds<Q4K> = true;
template <>
constexpr bool kOffsets<Q4K> = true;
template <>
constexpr bool kPartOfTwo<Q4K> = true;

struct Q4K : AffineCodes<Q4K, 32, 16> {
    static constexpr int kUnroll = 2;
    // lib/by_block.cuh
    static constexpr bool kHalves = true;
    // Nonzero if there are fifth bits (Q5_K).
    using Kind = uint32_t;
    struct Row {
        const uint8_t* low;
        const uint8_t* heads;
        const uint8_t* high;
    };
    struct Chunk {
        uint4 low, head;
        uint32_t high;
    };

    DEVICE static bool has_high(Kind kind) { return kind; }
    DEVICE static Kind kind(const LinearParams& w) { return w.kind; }

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 64 * 2 + col % 32 / 16;
        elem = col % 64 / 32 * 16 + col % 16;
    }

    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        uint64_t all = uint64_t(w.rows) * w.chunks, before = uint64_t(row) * w.chunks;
        const uint8_t* heads = w.data + all * 16;
        const uint8_t* high = kind(w) ? heads + all * 2 + before * 4 : nullptr;
        return {w.data + before * 16, heads + before * 2, high};
    }

    DEVICE static Chunk load(Row row, uint32_t chunk) {
        return {load_stream16(row.low + chunk * 16), load16(row.heads + chunk / 8 * 16),
                row.high ? load4(row.high + chunk * 4) : 0};
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
        uint32_t chunk = block / 2 * 2;
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            out.low[t] = load4(row.low + (chunk + t) * 16 + 4 * member);
            out.high[t] = 0;
        }
        out.head = load16(row.heads + block / 8 * 16);
        if (has_high(kind)) {
#pragma unroll
            for (uint32_t t = 0; t < 2; t++) out.high[t] = load4(row.high + (chunk + t) * 4);
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

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        Row at = Q4K::row(w, row);
        uint32_t chunk, elem;
        place(col, chunk, elem);
        uint32_t group = elem / 16, b = elem % 16, code = at.low[chunk * 16 + b] >> (4 * group) & 15u;
        if (at.high) code |= (at.high[chunk * 4 + b % 4] >> (elem / 4) & 1u) << 4;
        Affine both[2];
        affine_of(load16(at.heads + chunk / 8 * 16), chunk, both);
        Affine affine = group ? both[1] : both[0];
        return fmaf(static_cast<float>(code), affine.scale, affine.offset);
    }
};
