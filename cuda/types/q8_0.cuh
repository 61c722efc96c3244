// Q8_0: 32 int8 under one half scale, value = q x scale.
//
// Blocks of 34 bytes have no place for 16-byte loads, so the upload takes them apart: all integers, [rows,
// cols], and behind them all scales, [rows, cols / 32]. A chunk is 16 integers and their scale.
#pragma once

#include "../lib/block_codes.cuh"

// Four signed bytes, less something, as floats: 2^23 + (byte + 128) has the byte in its last place.
template <int Less = 0>
DEVICE void floats_of_bytes(uint32_t bytes, float (&out)[4]) {
    bytes ^= 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7540u + i)) - (8388736.0f + Less);
}

struct Q8_0 {
    static constexpr bool kInts = false;
    static constexpr int kElems = 16;
    static constexpr int kUnroll = 5;
    static constexpr int kRowsUnroll = 2;
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

    template <int M>
    DEVICE static void dot(Acc (&sums)[M], Chunk chunk, const uint8_t* acts, uint32_t at, uint32_t chunks) {
        uint32_t words[4] = {chunk.ints.x, chunk.ints.y, chunk.ints.z, chunk.ints.w};
        float scale = float_of_half(chunk.scale), part[M] = {};
#pragma unroll
        for (int plane = 0; plane < 4; plane++) {
            float w[4];
            floats_of_bytes(words[plane], w);
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint4 x = load16(acts + m * (chunks * kElems * 4) + (plane * chunks + at) * 16);
                part[m] = fmaf(w[0], __uint_as_float(x.x), part[m]);
                part[m] = fmaf(w[1], __uint_as_float(x.y), part[m]);
                part[m] = fmaf(w[2], __uint_as_float(x.z), part[m]);
                part[m] = fmaf(w[3], __uint_as_float(x.w), part[m]);
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++) sums[m] = fmaf(scale, part[m], sums[m]);
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
