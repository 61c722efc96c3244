// Keys in two groups for the kernels on tensor cores (attend_row.cuh, attend_mma_codes.cuh).
#pragma once

#include "../lib/split.cuh"
#include "group_share.cuh"

template <int D>
struct KeyShare<Codes42, D> : GroupShare<D> {
    DEVICE void bytes(uint32_t piece, const CodedKvParams&, uint32_t (&out)[4]) const {
        const SplitParams& params = Codes42::params(D);
        uint32_t odd = D > 64 ? piece % 2 : Place().member % 2;
        uint32_t eight = Codes42::four_bits(this->second[D > 64 ? piece / 2 : 0], odd);
        Codes4::bytes_of_eight(this->first[piece], params.groups[0].table, out[0], out[1]);
        Codes4::bytes_of_eight(eight, params.groups[1].table, out[2], out[3]);
    }
};

static_assert(sizeof(CodesSource<KeysInGroups, 64>::Shared) <= ATTEND_MMA_CODES_SHARED_BYTES_64,
    "the host asks for less");
static_assert(sizeof(CodesSource<KeysInGroups, 128>::Shared) <= ATTEND_MMA_CODES_SHARED_BYTES_128,
    "the host asks for less");
static_assert(sizeof(CodesSource<KeysInGroups, 256>::Shared) <= ATTEND_MMA_CODES_SHARED_BYTES_256,
    "the host asks for less");
