// Q8_0: 32 int8 with one f16 scale, value = q * scale.
//
// Blocks of 34 bytes do not allow 16-byte loads, so the upload splits them: all integers, [rows, cols], then
// all scales, [rows, cols / 32]. A chunk is 16 integers and their scale.
#pragma once

#include "../lib/affine.cuh"

struct Q8_0 : AffineCodes<Q8_0, 16, 16> {
    static constexpr int kUnroll = 5;
    static constexpr int kRowsUnroll = 2;
    static constexpr bool kSigned = true;
    struct Row {
        const uint8_t* ints;
        const uint16_t* scales;
    };
    struct Chunk {
        uint4 ints;
        uint16_t scale;
    };

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 16;
        elem = col % 16;
    }

    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        const uint8_t* scales = w.data + uint64_t(w.rows) * w.chunks * 16;
        return {w.data + uint64_t(row) * w.chunks * 16,
                reinterpret_cast<const uint16_t*>(scales) + uint64_t(row) * (w.chunks / 2)};
    }

    DEVICE static Chunk load(Row row, uint32_t chunk) {
        return {load_stream16(row.ints + chunk * 16), row.scales[chunk / 2]};
    }

    DEVICE static Affine affine(const Chunk& chunk, uint32_t, NoKind, uint32_t) {
        return {float_of_half(chunk.scale), 0.0f};
    }

    DEVICE static uint32_t bytes(const Chunk& chunk, uint32_t quad, NoKind) {
        uint32_t words[4] = {chunk.ints.x, chunk.ints.y, chunk.ints.z, chunk.ints.w};
        return words[quad];
    }

    // lib/block_codes.cuh
    using Codes = ScaledCodes;
    struct Part {
        uint32_t ints[2];
        uint16_t scale;
    };
    DEVICE static Part part(Row row, uint32_t block, uint32_t member) {
        const uint8_t* ints = row.ints + block * 32 + 4 * member;
        return {{load4(ints), load4(ints + 16)}, row.scales[block]};
    }
    DEVICE static Codes codes(const Part& part, uint32_t, uint32_t) {
        float scale = float_of_half(part.scale);
        return {{part.ints[0], part.ints[1]}, {scale, scale}};
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        Row at = Q8_0::row(w, row);
        return static_cast<float>(static_cast<int8_t>(at.ints[col])) * float_of_half(at.scales[col / 32]);
    }
};
