// Q1_0: 128 signs with one f16 scale; value = scale if the bit is 1, else -scale.
//
// The upload splits blocks into planes. A chunk is a block. Two planes, each over all rows: the signs in
// order, 16 bytes per chunk; the scales, one f16 per chunk.
#pragma once

#include "../lib/affine.cuh"

// It has its own float product.
struct Q1_0 : AffineCodes<Q1_0, 128, 128> {
    static constexpr int kUnroll = 4;
    // Codes are 0 and 2.
    static constexpr int kZeroPoint = 1;
    struct Row {
        const uint8_t* signs;
        const uint16_t* scales;
    };
    struct Chunk {
        uint4 signs;
        uint16_t scale;
    };

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 128;
        elem = col % 128;
    }

    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        const uint8_t* scales = w.data + uint64_t(w.rows) * w.chunks * 16;
        uint64_t before = uint64_t(row) * w.chunks;
        return {w.data + before * 16, reinterpret_cast<const uint16_t*>(scales) + before};
    }

    DEVICE static Chunk load(Row row, uint32_t chunk) {
        return {load_stream16(row.signs + chunk * 16), row.scales[chunk]};
    }

    DEVICE static Affine affine(const Chunk& chunk, uint32_t, NoKind, uint32_t) {
        return {float_of_half(chunk.scale), 0.0f};
    }

    DEVICE static uint32_t bytes(const Chunk& chunk, uint32_t quad, NoKind) {
        uint32_t words[4] = {chunk.signs.x, chunk.signs.y, chunk.signs.z, chunk.signs.w};
        return (words[quad / 8] >> (quad % 8 * 4) & 15u) * 0x00408102u & 0x02020202u;
    }

    // `value` if bit `elem` is 1, -value if it is 0.
    DEVICE static float signed_by(uint32_t word, uint32_t elem, uint32_t value) {
        return __uint_as_float(value ^ (~word << (31 - elem) & 0x80000000u));
    }

    template <int M>
    DEVICE static void dot(Acc (&sums)[M], Chunk chunk, const uint8_t* acts, uint32_t at, uint32_t chunks) {
        float scale = float_of_half(chunk.scale), part[M] = {};
#pragma unroll 1
        for (int word = 0; word < 4; word++) {
            uint32_t signs = chunk.signs.x;
            // Shifts the next word to the front.
            chunk.signs = {chunk.signs.y, chunk.signs.z, chunk.signs.w, 0};
#pragma unroll
            for (int quad = 0; quad < 8; quad++) {
#pragma unroll
                for (int m = 0; m < M; m++) {
                    const uint8_t* row = acts + m * (chunks * kElems * 4);
                    uint4 x = load16(row + ((8 * word + quad) * chunks + at) * 16);
                    part[m] += signed_by(signs, 4 * quad, x.x);
                    part[m] += signed_by(signs, 4 * quad + 1, x.y);
                    part[m] += signed_by(signs, 4 * quad + 2, x.z);
                    part[m] += signed_by(signs, 4 * quad + 3, x.w);
                }
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++) sums[m] = fmaf(scale, part[m], sums[m]);
    }

    // lib/block_codes.cuh
    using Codes = ScaledCodes;
    struct Part {
        uint32_t signs;
        uint16_t scale;
    };
    DEVICE static Part part(Row row, uint32_t block, uint32_t) {
        return {load4(row.signs + block * 4), row.scales[block / 4]};
    }
    DEVICE static Codes codes(const Part& part, uint32_t, uint32_t member) {
        Codes out;
        out.scales[0] = out.scales[1] = float_of_half(part.scale);
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            // One bit per byte: 1 for 1, and 0 for -1.
            uint32_t bits = (part.signs >> (4 * member + 16 * t) & 15u) * 0x00204081u & 0x01010101u;
            out.words[t] = (bits ^ 0x01010101u) * 254u | 0x01010101u;
        }
        return out;
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        Row at = Q1_0::row(w, row);
        uint32_t signs = at.signs[col / 8];
        return signed_by(signs, col % 8, __float_as_uint(float_of_half(at.scales[col / 128])));
    }
};
