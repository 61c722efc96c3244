// Trellis codes for the kernels on tensor cores (attend_row.cuh, attend_mma_codes.cuh).
#pragma once

#include "../lib/trellis.cuh"
#include "group_share.cuh"

// The codes before a lane's share are the last ones of the member before.
template <int D>
struct KeyShare<TrellisKeys, D> : GroupShare<D> {
    DEVICE void bytes(uint32_t piece, const CodedKvParams&, uint32_t (&out)[4]) const {
        uint32_t thread = recomputed(threadIdx.x), odd = D > 64 ? piece % 2 : thread % 2;
        // With D = 64, the lane's half of a word.
        uint32_t word = this->second[D > 64 ? piece / 2 : 0], half = odd ? word >> 16 : word;
        uint32_t before_first, before_second;
        if (piece == 0) {
            using Share = GroupShare<D>;
            uint32_t last = D > 64 ? this->second[Share::kSecond - 1] : half << 16;
            // The last code of the first group, and the last two of the second.
            uint32_t both = (this->first[Share::kFirst - 1] & 0xf0000000u) | (last >> 4 & 0x0f000000u);
            before_first = __shfl_sync(kWarp, both, int((thread & 28u) | ((thread + 3) & 3u)));
            before_second = before_first >> 24;
        } else {
            before_first = this->first[piece - 1];
            before_second = odd ? word >> 12 : this->second[(piece - 1) / 2] >> 28;
        }
        bytes_of_fours(this->first[piece], before_first, out[0], out[1]);
        bytes_of_twos(half << 4 | (before_second & 15u), out[2], out[3]);
    }
};

static_assert(sizeof(CodesSource<TrellisCodes, 64>::Shared) <= ATTEND_MMA_CODES_SHARED_BYTES_64,
    "the host asks for less");
static_assert(sizeof(CodesSource<TrellisCodes, 128>::Shared) <= ATTEND_MMA_CODES_SHARED_BYTES_128,
    "the host asks for less");
static_assert(sizeof(CodesSource<TrellisCodes, 256>::Shared) <= ATTEND_MMA_CODES_SHARED_BYTES_256,
    "the host asks for less");
