// Q2_0, PQ2_0 and PTQ1_0: 2-bit integers, value = (q - 1) * scale, one f16 scale per 64 or 128 of them.
//
// The upload splits blocks into planes, and unpacks the trits of PTQ1_0. A chunk is 64 elements. Planes, each
// over all rows:
//
//   codes, 16 bytes per chunk: byte b has elements b, b + 16, b + 32 and b + 48 from the low bits up
//   scales, one f16 per chunk, or per two chunks
#pragma once

#include "../lib/affine.cuh"

struct Q2_0;
template <>
constexpr bool kOfKinds<Q2_0> = true;

struct Q2_0 : AffineCodes<Q2_0, 64, 64> {
    static constexpr int kUnroll = 3;
    static constexpr int kZeroPoint = 1;
    // log2 of the number of chunks per scale.
    using Kind = uint32_t;
    struct Row {
        const uint8_t* codes;
        const uint16_t* scales;
        uint32_t shift;
    };
    struct Chunk {
        uint4 codes;
        uint16_t scale;
    };

    DEVICE static Kind kind(const LinearParams& w) { return w.kind; }

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 64;
        elem = col % 64;
    }

    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        const uint8_t* scales = w.data + uint64_t(w.rows) * w.chunks * 16;
        uint64_t before = uint64_t(row) * w.chunks;
        const uint16_t* halves = reinterpret_cast<const uint16_t*>(scales);
        return {w.data + before * 16, halves + (before >> kind(w)), kind(w)};
    }

    DEVICE static Chunk load(Row row, uint32_t chunk) {
        return {load_stream16(row.codes + chunk * 16), row.scales[chunk >> row.shift]};
    }

    DEVICE static Affine affine(const Chunk& chunk, uint32_t, Kind, uint32_t) {
        return {float_of_half(chunk.scale), 0.0f};
    }

    DEVICE static uint32_t bytes(const Chunk& chunk, uint32_t quad, Kind) {
        uint32_t words[4] = {chunk.codes.x, chunk.codes.y, chunk.codes.z, chunk.codes.w};
        return words[quad % 4] >> (quad / 4 * 2) & 0x03030303u;
    }

    // lib/block_codes.cuh
    using Codes = ScaledCodes;
    struct Part {
        uint32_t word;
        uint16_t scale;
    };
    DEVICE static Part part(Row row, uint32_t block, uint32_t member, Kind) {
        uint32_t chunk = block / 2;
        return {load4(row.codes + chunk * 16 + 4 * member), row.scales[chunk >> row.shift]};
    }
    DEVICE static Codes codes(const Part& part, uint32_t block, uint32_t, Kind) {
        Codes out;
        out.scales[0] = out.scales[1] = float_of_half(part.scale);
#pragma unroll
        for (uint32_t t = 0; t < 2; t++)
            out.words[t] = bytes_less<1>(part.word >> (block % 2 * 4 + 2 * t) & 0x03030303u);
        return out;
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        Row at = Q2_0::row(w, row);
        uint32_t chunk = col / 64, code = at.codes[chunk * 16 + col % 16] >> (col / 16 % 4 * 2) & 3u;
        return (static_cast<float>(code) - 1.0f) * float_of_half(at.scales[chunk >> at.shift]);
    }
};
