// Q2_K and Q3_K: 256 integers of 2 or 3 bits in 16 groups. Q2_K: a 4-bit scale and a 4-bit minimum per group,
// value = q * group scale * scale - group minimum * scale of the minimums. Q3_K: a signed scale per group,
// value = (q - 4) * group scale * scale.
//
// The upload splits blocks into planes. A chunk is 64 elements, as in Q6_K: 128 h + 32 i + 16 t + (0 .. 15),
// i = 0 .. 3; each of its four groups has one scale. Planes, each over all rows:
//
//   low 2 bits, 16 bytes per chunk: i = 0 in the low bits to i = 3 in the high bits
//   Q3_K: the third bits, two words per chunk: quad q of group i is bit 4 (i % 2) + q of each byte of word
//   i / 2
//   20 bytes per block of 4 chunks: its groups, 4 bytes per chunk (Q2_K: scale in the low nibble, minimum in
//   the high one; Q3_K: an int8), then the block's f16 scale of scales and, for Q2_K, of minimums
#pragma once

#include "../lib/affine.cuh"

struct Q2K;
template <>
constexpr bool kOfKinds<Q2K> = true;
template <>
constexpr bool kOffsets<Q2K> = true;
template <>
constexpr bool kTwoScales<Q2K> = true;
template <>
constexpr int kMmaSets<Q2K> = 1;

struct Q2K : AffineCodes<Q2K, 64, 16> {
    static constexpr int kUnroll = 2;
    static constexpr int kGroupsUnroll = 1, kRowsQuadsUnroll = 1;
    // lib/by_block.cuh
    static constexpr bool kHalves = true;
    // Nonzero for Q3_K.
    using Kind = uint32_t;
    struct Row {
        const uint8_t* low;
        const uint8_t* high;
        const uint8_t* scales;
        DEVICE uint32_t groups(uint32_t chunk) const {
            return load4(scales + chunk / 4 * 20 + chunk % 4 * 4);
        }
        DEVICE uint32_t of_block(uint32_t chunk) const { return load4(scales + chunk / 4 * 20 + 16); }
    };
    struct Chunk {
        uint4 low;
        uint2 high;
        uint32_t groups, scales;
    };

    DEVICE static bool has_high(Kind kind) { return kind; }
    DEVICE static Kind kind(const LinearParams& w) { return w.kind; }

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 128 * 2 + col % 32 / 16;
        elem = col % 128 / 32 * 16 + col % 16;
    }

    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        uint64_t all = uint64_t(w.rows) * w.chunks, before = uint64_t(row) * w.chunks;
        bool q3 = kind(w);
        const uint8_t* high = w.data + all * 16;
        const uint8_t* scales = high + (q3 ? all * 8 : 0) + before * 5;
        return {w.data + before * 16, q3 ? high + before * 8 : nullptr, scales};
    }

    DEVICE static Chunk load(Row row, uint32_t chunk) {
        return {load_stream16(row.low + chunk * 16),
                row.high ? load8(row.high + chunk * 8) : uint2{0, 0},
                row.groups(chunk), row.of_block(chunk)};
    }

    DEVICE static Affine affine_of(uint32_t group, uint32_t scales, Kind q3) {
        float2 of_block = floats_of_half2(scales);
        if (q3) {
            float scale = of_block.x * static_cast<float>(static_cast<int8_t>(group));
            return {scale, -4.0f * scale};
        }
        float scale = static_cast<float>(group & 15u), min = static_cast<float>(group >> 4 & 15u);
        return {of_block.x * scale, -of_block.y * min};
    }
    DEVICE static Affine affine(const Chunk& chunk, uint32_t, Kind kind, uint32_t group) {
        return affine_of(chunk.groups >> (8 * group), chunk.scales, kind);
    }

    DEVICE static uint32_t bytes(const Chunk& chunk, uint32_t quad, Kind) {
        // Not an array: indexing it with a variable would move it to local memory.
        bool first = quad % 4 < 2;
        uint32_t even = first ? chunk.low.x : chunk.low.z, odd = first ? chunk.low.y : chunk.low.w;
        uint32_t high = quad < 8 ? chunk.high.x : chunk.high.y;
        uint32_t low = (quad % 2 ? odd : even) >> (quad / 4 * 2) & 0x03030303u;
        return low | (high >> quad % 8 & 0x01010101u) << 2;
    }

    // lib/block_codes.cuh
    struct Codes {
        uint32_t words[2], mins[2];
        float scales[2], of_mins;
        DEVICE float scale(int t) const { return scales[t]; }
        DEVICE float offset(int t) const { return of_mins * static_cast<float>(mins[t] & 255u); }
    };
    struct Part {
        uint32_t low[2], high[2], groups[2], of_block;
    };
    DEVICE static Part part(Row row, uint32_t block, uint32_t member, Kind) {
        Part out;
        uint32_t first = block / 4 * 2;
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            uint32_t chunk = first + t;
            out.low[t] = load4(row.low + chunk * 16 + 4 * member);
            out.high[t] = row.high ? load4(row.high + chunk * 8 + block % 4 / 2 * 4) : 0;
            out.groups[t] = row.groups(chunk);
        }
        out.of_block = row.of_block(first);
        return out;
    }
    DEVICE static Codes codes(const Part& part, uint32_t block, uint32_t member, Kind q3) {
        Codes out;
        uint32_t i = block % 4;
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            uint32_t codes = part.low[t] >> (2 * i) & 0x03030303u;
            codes |= bits_of_quad(part.high[t], i % 2 * 4 + member, 2);
            out.words[t] = q3 ? bytes_less<4>(codes) : codes;
            uint32_t group = part.groups[t] >> (8 * i);
            out.scales[t] = affine_of(group, part.of_block, q3).scale;
            out.mins[t] = q3 ? 0 : (group >> 4 & 15u) * 0x01010101u;
        }
        out.of_mins = -floats_of_half2(part.of_block).y;
        return out;
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        Row at = Q2K::row(w, row);
        uint32_t chunk, elem;
        place(col, chunk, elem);
        uint32_t i = elem / 16, b = elem % 16, code = at.low[chunk * 16 + b] >> (2 * i) & 3u;
        if (at.high) code |= (at.high[chunk * 8 + i / 2 * 4 + b % 4] >> (i % 2 * 4 + b / 4) & 1u) << 2;
        Affine affine = affine_of(at.groups(chunk) >> (8 * i), at.of_block(chunk), kind(w));
        return fmaf(static_cast<float>(code), affine.scale, affine.offset);
    }
};
