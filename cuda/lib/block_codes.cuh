// Weights as tensor core operands, for types whose blocks of columns have scales. Of QUANT_COLS columns of a
// row, a lane holds 4 neighbouring codes of the first 16 columns and 4 of the last 16, as int8. A weight type
// has
//
//   Part, part(row, block, member, kind)     what is read from memory; kPartOfTwo: for blocks 2 i and 2 i + 1
//   Codes, codes(part, block, member, kind)  words[t] holds the codes of half t of the block; a weight is
//                                            code * scale(t), + offset(t) with kOffsets; with kTwoScales, an
//                                            offset is of_mins * (a byte of mins[t])
#pragma once

#include "input.cuh"

// True if the halves of a block have separate scales.
template <class T>
constexpr bool kTwoScales = false;

// True if blocks 2 i and 2 i + 1 share one Part.
template <class T>
constexpr bool kPartOfTwo = false;

struct ScaledCodes {
    uint32_t words[2];
    float scales[2];
    DEVICE float scale(int t) const { return scales[t]; }
};

// Subtracts ZeroPoint from four bytes below 128, giving signed bytes.
template <uint32_t ZeroPoint>
DEVICE uint32_t bytes_less(uint32_t bytes) {
    return (bytes + (128u - ZeroPoint) * 0x01010101u) ^ 0x80808080u;
}

// Integer accumulators start at the bits of 1.5 x 2^23, so their final bits, read as a float, are 1.5 x 2^23
// + sum. This saves the conversion from int.
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
