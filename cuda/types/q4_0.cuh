// Q4_0: 32 4-bit integers with one f16 scale, value = (q - 8) * scale.
//
// Blocks of 18 bytes do not allow 16-byte loads, so the upload splits them: all integers, [rows, cols / 2]
// bytes, then all scales, [rows, cols / 32]. A chunk is a block: byte b has element b in its low nibble and
// element b + 16 in its high nibble.
#pragma once

#include "../lib/affine.cuh"

struct Q4_0 : AffineCodes<Q4_0, 32, 32> {
    static constexpr int kUnroll = 4;
    static constexpr int kZeroPoint = 8;
    struct Row {
        const uint8_t* ints;
        const uint16_t* scales;
    };
    struct Chunk {
        uint4 ints;
        uint16_t scale;
    };

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 32;
        elem = col % 32;
    }

    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        const uint8_t* scales = w.data + uint64_t(w.rows) * w.chunks * 16;
        return {w.data + uint64_t(row) * w.chunks * 16,
                reinterpret_cast<const uint16_t*>(scales) + uint64_t(row) * w.chunks};
    }

    DEVICE static Chunk load(Row row, uint32_t chunk) {
        return {load_stream16(row.ints + chunk * 16), row.scales[chunk]};
    }

    DEVICE static Affine affine(const Chunk& chunk, uint32_t, NoKind, uint32_t) {
        return {float_of_half(chunk.scale), 0.0f};
    }

    DEVICE static uint32_t bytes(const Chunk& chunk, uint32_t quad, NoKind) {
        uint32_t words[4] = {chunk.ints.x, chunk.ints.y, chunk.ints.z, chunk.ints.w};
        return words[quad % 4] >> (quad / 4 * 4) & 0x0f0f0f0fu;
    }

    // lib/block_codes.cuh
    using Codes = ScaledCodes;
    struct Part {
        uint32_t ints;
        uint16_t scale;
    };
    DEVICE static Part part(Row row, uint32_t block, uint32_t member) {
        return {load4(row.ints + block * 16 + 4 * member), row.scales[block]};
    }
    DEVICE static Codes codes(const Part& part, uint32_t, uint32_t) {
        float scale = float_of_half(part.scale);
        uint32_t first = part.ints & 0x0f0f0f0fu, second = part.ints >> 4 & 0x0f0f0f0fu;
        return {{bytes_less<8>(first), bytes_less<8>(second)}, {scale, scale}};
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        Row at = Q4_0::row(w, row);
        uint32_t q = at.ints[col / 32 * 16 + col % 16] >> (col % 32 / 16 * 4) & 15u;
        return (static_cast<float>(q) - 8.0f) * float_of_half(at.scales[col / 32]);
    }
};
