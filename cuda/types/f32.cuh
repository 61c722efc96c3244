// F32: floats. A chunk is 4 of them; rows are padded with zeros to whole chunks.
#pragma once

#include "../lib/input.cuh"

struct F32 {
    static constexpr bool kInts = false;
    static constexpr int kElems = 4;
    static constexpr int kUnroll = 5;
    static constexpr int kRowsUnroll = 2;
    using Acc = float;
    using Row = const uint8_t*;
    using Chunk = uint4;

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 4;
        elem = col % 4;
    }

    DEVICE static Row row(const LinearParams& w, uint32_t row) { return w.data + uint64_t(row) * w.chunks * 16; }

    DEVICE static Chunk load(Row row, uint32_t chunk) { return load_stream16(row + chunk * 16); }

    template <int M>
    DEVICE static void dot(Acc (&sums)[M], Chunk w, const uint8_t* acts, uint32_t at, uint32_t chunks) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            uint4 x = load16(acts + m * (chunks * kElems * 4) + at * 16);
            sums[m] = fmaf(__uint_as_float(w.x), __uint_as_float(x.x), sums[m]);
            sums[m] = fmaf(__uint_as_float(w.y), __uint_as_float(x.y), sums[m]);
            sums[m] = fmaf(__uint_as_float(w.z), __uint_as_float(x.z), sums[m]);
            sums[m] = fmaf(__uint_as_float(w.w), __uint_as_float(x.w), sums[m]);
        }
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        return reinterpret_cast<const float*>(F32::row(w, row))[col];
    }
};
