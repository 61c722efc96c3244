// A lane's share of a key in two groups, of 4-bit and of 2-bit codes: D / 8 elements of each, so that a piece
// has eight of each.
#pragma once

#include "attend_mma_codes.cuh"

template <int D>
struct GroupShare {
    static constexpr uint32_t kFirst = D / 64, kSecond = D > 64 ? D / 128 : 1;
    uint32_t first[kFirst], second[kSecond];

    DEVICE void load(const uint8_t* vector, uint32_t member) {
        load_words(vector + 4 * kFirst * member, first);
        // With D = 64, two lanes share a word.
        load_words(vector + D / 4 + 4 * (D > 64 ? kSecond * member : member / 2), second);
    }
    DEVICE static void load_query(const uint32_t* bytes, uint32_t (&to)[D / 16]) {
        Place at(recomputed(threadIdx.x));
#pragma unroll
        for (uint32_t group = 0; group < 2; group++) {
            uint32_t words[D / 32];
            load_words(bytes + at.quartet * kBytesPitch<D> + group * (D / 8) + at.member * (D / 32), words);
#pragma unroll
            for (uint32_t i = 0; i < D / 32; i++) to[4 * (i / 2) + 2 * group + i % 2] = words[i];
        }
    }
    DEVICE static float unit(const CodedKvParams&) { return 1.0f; }
};
