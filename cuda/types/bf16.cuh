// BF16: the upper halves of floats. A chunk is 8 of them; rows are padded with zeros to whole chunks.
#pragma once

#include "../lib/input.cuh"

struct BF16 {
    static constexpr bool kInts = false;
    static constexpr int kElems = 8;
    static constexpr int kUnroll = 5;
    static constexpr int kRowsUnroll = 2;
    using Acc = float;
    using Row = const uint8_t*;
    using Chunk = uint4;

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 8;
        elem = col % 8;
    }

    DEVICE static Row row(const LinearParams& w, uint32_t row) { return w.data + uint64_t(row) * w.chunks * 16; }

    DEVICE static Chunk load(Row row, uint32_t chunk) { return load_stream16(row + chunk * 16); }

    template <int M>
    DEVICE static void dot(Acc (&sums)[M], Chunk chunk, const uint8_t* acts, uint32_t at, uint32_t chunks) {
        uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
        float w[8];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w[2 * i] = __uint_as_float(words[i] << 16);
            w[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint8_t* row = acts + m * (chunks * kElems * 4);
#pragma unroll
            for (int plane = 0; plane < 2; plane++) {
                uint4 x = load16(row + (plane * chunks + at) * 16);
                sums[m] = fmaf(w[4 * plane], __uint_as_float(x.x), sums[m]);
                sums[m] = fmaf(w[4 * plane + 1], __uint_as_float(x.y), sums[m]);
                sums[m] = fmaf(w[4 * plane + 2], __uint_as_float(x.z), sums[m]);
                sums[m] = fmaf(w[4 * plane + 3], __uint_as_float(x.w), sums[m]);
            }
        }
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        uint32_t bits = reinterpret_cast<const uint16_t*>(BF16::row(w, row))[col];
        return __uint_as_float(bits << 16);
    }
};
