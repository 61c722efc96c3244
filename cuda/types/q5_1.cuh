// Q4_1, Q5_0 and Q5_1: 32 integers of 4 or 5 bits with one f16 scale and an offset (an f16, or -16 * scale
// for Q5_0); value = q * scale + offset.
//
// The upload splits blocks into planes. A chunk is a block. Planes, each over all rows:
//
//   low 4 bits, 16 bytes per chunk: element b in the low nibble of byte b, b + 16 in the high nibble
//   fifth bits if the type has them, a word per chunk: element 4 i + e is bit i of byte e
//   scales, one f16 per chunk, or two with offsets
#pragma once

#include "../lib/affine.cuh"

struct Q5_1;
template <>
constexpr bool kOfKinds<Q5_1> = true;
template <>
constexpr bool kOffsets<Q5_1> = true;
template <>
constexpr int kMmaSets<Q5_1> = 1;

struct Q5_1 : AffineCodes<Q5_1, 32, 32> {
    static constexpr int kUnroll = 4;
    // lib/affine.cuh
    static constexpr int kRowsQuadsUnroll = 4;
    // Bit 0: has fifth bits. Bit 1: has offsets.
    using Kind = uint32_t;
    struct Row {
        const uint8_t* low;
        const uint8_t* high;
        const uint8_t* scales;
        bool has_offsets;
    };
    struct Chunk {
        uint4 low;
        uint32_t high, scales;
    };

    DEVICE static bool has_high(Kind kind) { return kind & 1; }
    DEVICE static Kind kind(const LinearParams& w) { return w.kind; }

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 32;
        elem = col % 32;
    }

    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        uint64_t all = uint64_t(w.rows) * w.chunks, before = uint64_t(row) * w.chunks;
        bool has_high = kind(w) & 1, has_offsets = kind(w) & 2;
        const uint8_t* high = w.data + all * 16;
        const uint8_t* scales = high + (has_high ? all * 4 : 0);
        return {w.data + before * 16, has_high ? high + before * 4 : nullptr,
                scales + before * (has_offsets ? 4 : 2), has_offsets};
    }

    DEVICE static uint32_t scales_of(Row row, uint32_t chunk) {
        if (row.has_offsets) return load4(row.scales + chunk * 4);
        return reinterpret_cast<const uint16_t*>(row.scales)[chunk];
    }

    DEVICE static Chunk load(Row row, uint32_t chunk) {
        return {load_stream16(row.low + chunk * 16), row.high ? load4(row.high + chunk * 4) : 0,
                scales_of(row, chunk)};
    }

    DEVICE static Affine affine_of(uint32_t scales, Kind kind) {
        float2 two = floats_of_half2(scales);
        return {two.x, kind & 2 ? two.y : -16.0f * two.x};
    }
    DEVICE static Affine affine(const Chunk& chunk, uint32_t, Kind kind, uint32_t) {
        return affine_of(chunk.scales, kind);
    }

    DEVICE static uint32_t bytes(const Chunk& chunk, uint32_t quad, Kind) {
        uint32_t words[4] = {chunk.low.x, chunk.low.y, chunk.low.z, chunk.low.w};
        uint32_t low = words[quad % 4] >> (quad / 4 * 4) & 0x0f0f0f0fu;
        return low | bits_of_quad(chunk.high, quad, 4);
    }

    // lib/block_codes.cuh
    using Codes = AffineWords;
    struct Part {
        uint32_t low, high, scales;
    };
    DEVICE static Part part(Row row, uint32_t block, uint32_t member, Kind) {
        return {load4(row.low + block * 16 + 4 * member), row.high ? load4(row.high + block * 4) : 0,
                scales_of(row, block)};
    }
    DEVICE static Codes codes(const Part& part, uint32_t, uint32_t member, Kind kind) {
        Codes out;
        bool has_offsets = kind & 2;
        float2 two = floats_of_half2(part.scales);
        out.affine = {two.x, has_offsets ? two.y : 0.0f};
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            uint32_t codes = part.low >> (4 * t) & 0x0f0f0f0fu;
            codes |= bits_of_quad(part.high, member + 4 * t, 4);
            out.words[t] = has_offsets ? codes : bytes_less<16>(codes);
        }
        return out;
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        Row at = Q5_1::row(w, row);
        uint32_t chunk = col / 32, elem = col % 32;
        uint32_t code = at.low[chunk * 16 + elem % 16] >> (elem / 16 * 4) & 15u;
        if (at.high) code |= (at.high[chunk * 4 + elem % 4] >> (elem / 4) & 1u) << 4;
        Affine affine = affine_of(scales_of(at, chunk), kind(w));
        return fmaf(static_cast<float>(code), affine.scale, affine.offset);
    }
};
