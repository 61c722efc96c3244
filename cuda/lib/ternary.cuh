// Ternary weights of 2 bits, value = code - 1. The product of two rows is one integer, multiplied at the end
// by the scale of the tensor or, with kRowScales<T>, of the row.
//
// A chunk is 16 bytes: 64 weights, 16 in each of 4 groups; group g is at bit T::shift(g) of every byte. So a
// u32 shifted by that and masked with 0x03030303 is four neighbouring codes: one dp4a operand. sum((code - 1)
// q) = sum(code q) - sum(q): codes are multiplied as they are, and the row's sum of q is subtracted once.
#pragma once

#include "input.cuh"

template <class T>
struct Ternary {
    static constexpr bool kInts = true;
    static constexpr bool kChunkSums = false;
    static constexpr int kElems = 64;
    static constexpr int kUnroll = 5;
    static constexpr int kRowsUnroll = 2;
    // lib/input.cuh
    static constexpr uint32_t kBlockQuads = 7;
    using Acc = int32_t;
    using Row = const uint8_t*;
    using Chunk = uint4;

    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        return w.data + uint64_t(row) * w.chunks * 16;
    }

    DEVICE static Chunk load(Row row, uint32_t chunk) { return load_stream16(row + chunk * 16); }
    DEVICE static uint4 load_codes(Row row, uint32_t chunk) { return load(row, chunk); }

    // Four neighbouring codes of one group.
    DEVICE static uint32_t codes(uint32_t word, int group) { return word >> T::shift(group) & 0x03030303u; }

    template <int M>
    DEVICE static void dot(Acc (&sums)[M], Chunk chunk, const uint8_t* acts, uint32_t at, uint32_t chunks) {
        uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
        if constexpr (M == 1) {
            // Codes stay in place within their bytes, and each group's sum is shifted instead, which is
            // exact.
            int32_t of_groups[4] = {};
#pragma unroll
            for (int group = 0; group < 4; group++) {
                uint4 q = load16(acts + (group * chunks + at) * 16);
                uint32_t quads[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint32_t shifted = words[i] & 0x03030303u << T::shift(group);
                    of_groups[group] =
                        dp4a_unsigned(shifted, static_cast<int32_t>(quads[i]), of_groups[group]);
                }
            }
#pragma unroll
            for (int group = 0; group < 4; group++) sums[0] += of_groups[group] >> T::shift(group);
        } else {
#pragma unroll
            for (int m = 0; m < M; m++) {
                const uint8_t* row = acts + m * (chunks * kElems);
#pragma unroll
                for (int group = 0; group < 4; group++) {
                    uint4 q = load16(row + (group * chunks + at) * 16);
                    uint32_t quads[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        int32_t w = static_cast<int32_t>(codes(words[i], group));
                        sums[m] = __dp4a(w, static_cast<int32_t>(quads[i]), sums[m]);
                    }
                }
            }
        }
    }

    DEVICE static uint32_t code(uint32_t byte, int group) { return byte >> T::shift(group) & 3u; }
};
