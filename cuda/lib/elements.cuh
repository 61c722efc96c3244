// Base of the types that convert elements to float one by one: a chunk is 16 bytes of elements, and rows are
// padded with zeros to whole chunks. `Type` has floats(chunk, out), which converts a chunk.
#pragma once

#include "input.cuh"

template <class Type, int ELEMS>
struct Elements {
    static constexpr bool kInts = false;
    static constexpr int kElems = ELEMS;
    static constexpr int kUnroll = 5;
    static constexpr int kRowsUnroll = 2;
    // lib/input.cuh
    static constexpr uint32_t kBlockQuads = 3;
    using Acc = float;
    using Row = const uint8_t*;
    using Chunk = uint4;

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / ELEMS;
        elem = col % ELEMS;
    }

    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        return w.data + uint64_t(row) * w.chunks * 16;
    }

    DEVICE static Chunk load(Row row, uint32_t chunk) { return load_stream16(row + chunk * 16); }

    template <int M>
    DEVICE static void dot(Acc (&sums)[M], Chunk chunk, const uint8_t* acts, uint32_t at, uint32_t chunks) {
        float w[ELEMS];
        Type::floats(chunk, w);
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint8_t* row = acts + m * (chunks * ELEMS * 4);
#pragma unroll
            for (int plane = 0; plane < ELEMS / 4; plane++) {
                uint4 x = load16(row + (plane * chunks + at) * 16);
                sums[m] = fmaf(w[4 * plane], __uint_as_float(x.x), sums[m]);
                sums[m] = fmaf(w[4 * plane + 1], __uint_as_float(x.y), sums[m]);
                sums[m] = fmaf(w[4 * plane + 2], __uint_as_float(x.z), sums[m]);
                sums[m] = fmaf(w[4 * plane + 3], __uint_as_float(x.w), sums[m]);
            }
        }
    }
};
