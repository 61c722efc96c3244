// Conversions between f32 and f16: an f32 as the sum of two f16 for tensor cores, and f16 back to f32.
#pragma once

#include "../simt.h"

// A float as the nearest f16 plus the f16 nearest to the remainder: 22 bits together, if the float is large
// enough for the second to be a normal f16.
struct TwoHalves {
    uint16_t high, low;
    DEVICE static TwoHalves of(float x) {
        uint16_t high = half_bits(x);
        return {high, half_bits(x - float_of_half(high))};
    }
};

// A power of two that scales a vector into the range where f16 is precise, and its inverse.
struct PowerOfTwo {
    float by, back;

    // `largest` is the bits of the largest magnitude, which is scaled into [2^10, 2^11); vectors of tiny
    // values stay smaller.
    DEVICE static PowerOfTwo of(uint32_t largest) {
        uint32_t exponent = largest >> 23 > 27u ? largest >> 23 : 27u;
        return {__uint_as_float((264u - exponent) << 23), __uint_as_float((exponent - 10u) << 23)};
    }
};

// Exponent of the largest power of two that is at most `half`; for tiny values, that of the smallest f16.
DEVICE float exponent_of(float half) {
    int32_t exponent = int32_t(__float_as_uint(half) >> 23 & 255u) - 127;
    return float(exponent > -24 ? exponent : -24);
}

// Pitch of f16 vectors in shared memory: eight neighbouring ones are in different banks.
template <int D>
constexpr uint32_t kPitch = D + 8;

// 8 neighbouring f16 as floats.
DEVICE void floats_of_halves(uint4 bits, float* out) {
    uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (uint32_t w = 0; w < 4; w++) {
        float2 two = floats_of_half2(words[w]);
        out[2 * w] = two.x;
        out[2 * w + 1] = two.y;
    }
}

DEVICE void floats_of_halves(const uint4 (&bits)[2], float (&out)[16]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) floats_of_halves(bits[i], out + 8 * i);
}
