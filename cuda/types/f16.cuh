// F16: halves. A chunk is 8 of them; rows are padded with zeros to whole chunks.
#pragma once

#include "../lib/input.cuh"

struct F16 {
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
        float2 w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = floats_of_half2(words[i]);
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint8_t* row = acts + m * (chunks * kElems * 4);
#pragma unroll
            for (int plane = 0; plane < 2; plane++) {
                uint4 x = load16(row + (plane * chunks + at) * 16);
                sums[m] = fmaf(w[2 * plane].x, __uint_as_float(x.x), sums[m]);
                sums[m] = fmaf(w[2 * plane].y, __uint_as_float(x.y), sums[m]);
                sums[m] = fmaf(w[2 * plane + 1].x, __uint_as_float(x.z), sums[m]);
                sums[m] = fmaf(w[2 * plane + 1].y, __uint_as_float(x.w), sums[m]);
            }
        }
    }

    // What a lane has of 32 columns from `col` on, for tensor cores: 4 of the first 16 and 4 of the others, as halves.
    static constexpr bool kGroupScales = false;
    struct Halves {
        uint32_t words[4];
    };

    DEVICE static Halves halves(const LinearParams& w, uint32_t row, uint32_t col, uint32_t member) {
        const uint8_t* at = F16::row(w, row);
        Halves out = {};
#pragma unroll
        for (int group = 0; group < 2; group++) {
            uint32_t first = col + 16 * group + 4 * member;
            // Chunks are padded with zeros, but rows are not padded to 32 columns.
            if (first >= w.chunks * kElems) continue;
            uint2 four = *reinterpret_cast<const uint2*>(at + first * 2);
            out.words[2 * group] = four.x;
            out.words[2 * group + 1] = four.y;
        }
        return out;
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        return float_of_half(reinterpret_cast<const uint16_t*>(F16::row(w, row))[col]);
    }
};
