// Q4_0: 32 4-bit integers under one half scale, value = (q - 8) x scale.
//
// Blocks of 18 bytes have no place for 16-byte loads, so the upload takes them apart: all integers, [rows,
// cols / 2] bytes, and behind them all scales, [rows, cols / 32]. A chunk is a block: byte b holds element b
// in its low half and element b + 16 in its high one.
#pragma once

#include "q8_0.cuh"

struct Q4_0 {
    static constexpr bool kInts = false;
    static constexpr int kElems = 32;
    static constexpr int kUnroll = 4;
    static constexpr int kRowsUnroll = 1;
    // lib/input.cuh
    static constexpr uint32_t kBlockQuads = 4;
    using Acc = float;
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

    template <int M>
    DEVICE static void dot(Acc (&sums)[M], Chunk chunk, const uint8_t* acts, uint32_t at, uint32_t chunks) {
        uint32_t words[4] = {chunk.ints.x, chunk.ints.y, chunk.ints.z, chunk.ints.w};
        float scale = float_of_half(chunk.scale), part[M] = {};
#pragma unroll
        for (int plane = 0; plane < 8; plane++) {
            float w[4];
            floats_of_bytes(words[plane % 4] >> (plane / 4 * 4) & 0x0f0f0f0fu, w);
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint4 x = load16(acts + m * (chunks * kElems * 4) + (plane * chunks + at) * 16);
                part[m] = fmaf(w[0] - 8.0f, __uint_as_float(x.x), part[m]);
                part[m] = fmaf(w[1] - 8.0f, __uint_as_float(x.y), part[m]);
                part[m] = fmaf(w[2] - 8.0f, __uint_as_float(x.z), part[m]);
                part[m] = fmaf(w[3] - 8.0f, __uint_as_float(x.w), part[m]);
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++) sums[m] = fmaf(scale, part[m], sums[m]);
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
