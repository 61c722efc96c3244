// Keys in two groups for the kernels on tensor cores (attend_row.cuh, attend_mma_codes.cuh).
#pragma once

#include "../lib/split.cuh"
#include "attend_mma_codes.cuh"

// A share of a key in two groups: D / 8 elements of each, so that a piece has eight of each.
template <int D>
struct KeyShare<Codes42, D> {
    static constexpr uint32_t kFirst = D / 64, kSecond = D > 64 ? D / 128 : 1;
    uint32_t first[kFirst], second[kSecond];

    DEVICE void load(const uint8_t* vector, uint32_t member) {
        load_words(vector + 4 * kFirst * member, first);
        // With D = 64, two lanes share a word.
        load_words(vector + D / 4 + 4 * (D > 64 ? kSecond * member : member / 2), second);
    }
    DEVICE void bytes(uint32_t piece, const CodedKvParams&, uint32_t (&out)[4]) const {
        const SplitParams& params = Codes42::params(D);
        uint32_t odd = D > 64 ? piece % 2 : Place().member % 2;
        uint32_t eight = Codes42::four_bits(second[D > 64 ? piece / 2 : 0], odd);
        Codes4::bytes_of_eight(first[piece], params.groups[0].table, out[0], out[1]);
        Codes4::bytes_of_eight(eight, params.groups[1].table, out[2], out[3]);
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

static_assert(sizeof(CodesSource<KeysInGroups, 64>::Shared) <= ATTEND_MMA_CODES_SHARED_BYTES_64,
    "the host asks for less");
static_assert(sizeof(CodesSource<KeysInGroups, 128>::Shared) <= ATTEND_MMA_CODES_SHARED_BYTES_128,
    "the host asks for less");
static_assert(sizeof(CodesSource<KeysInGroups, 256>::Shared) <= ATTEND_MMA_CODES_SHARED_BYTES_256,
    "the host asks for less");
