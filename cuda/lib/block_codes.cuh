// Weights as tensor cores want them where blocks of columns have scales: a lane's part of ROUND_COLS columns
// of a row is 4 neighbouring codes of the first 16 columns, and 4 of the others, as int8. Weight types have
//
//   Part, part(row, block, member, kind)   what is read of memory; with kPartOfTwo, of blocks 2 i and 2 i + 1
//   Codes, codes(part, block, member, kind)  words[t] has the codes of each half; the weights are
//                                          code x scale(t) and, where there are offsets, + offset(t); with
//                                          kTwoScales an offset is of_mins times a byte of mins[t]
#pragma once

#include "input.cuh"

// Whether the halves of a block have scales of their own.
template <class T>
constexpr bool kTwoScales = false;

// Whether blocks 2 i and 2 i + 1 have one Part.
template <class T>
constexpr bool kPartOfTwo = false;

struct ScaledCodes {
    uint32_t words[2];
    float scales[2];
    DEVICE float scale(int t) const { return scales[t]; }
};

// Four bytes below 128, less something, as signed bytes.
template <uint32_t Less>
DEVICE uint32_t bytes_less(uint32_t bytes) {
    return (bytes + (128u - Less) * 0x01010101u) ^ 0x80808080u;
}

// Sums of integers begin at the bits of 1.5 x 2^23, so that their bits are those of 1.5 x 2^23 + sum as a
// float.
constexpr int32_t kSumBits = 0x4b400000;
DEVICE float sum_of_bits(int32_t bits) {
    return __int_as_float(bits) - __int_as_float(kSumBits);
}

template <class T, class Kind>
DEVICE typename T::Part part_of(
    const typename T::Row& row, uint32_t block, uint32_t member, const Kind& kind
) {
    if constexpr (kOfKinds<T>) {
        return T::part(row, block, member, kind);
    } else {
        return T::part(row, block, member);
    }
}

template <class T, class Kind>
DEVICE typename T::Codes codes_of(
    const typename T::Part& part, uint32_t block, uint32_t member, const Kind& kind
) {
    if constexpr (kOfKinds<T>) {
        return T::codes(part, block, member, kind);
    } else {
        return T::codes(part, block, member);
    }
}
