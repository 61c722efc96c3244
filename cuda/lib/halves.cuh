// Halves of floats: two for each, for tensor cores; and back.
#pragma once

#include "../simt.h"

// The half nearest to a float, and the one nearest to what it lacks: 22 bits together, where the float is
// large enough for the second one to be a normal half.
struct TwoHalves {
    uint16_t high, low;
    DEVICE static TwoHalves of(float x) {
        uint16_t high = half_bits(x);
        return {high, half_bits(x - float_of_half(high))};
    }
};

// A power of two that brings a vector to where halves are exact, and one over it.
struct PowerOfTwo {
    float by, back;

    // `largest` has the bits of the largest magnitude, which comes to 2^10 at least and below 2^11; vectors
    // of next to nothing stay below.
    DEVICE static PowerOfTwo of(uint32_t largest) {
        uint32_t exponent = largest >> 23 > 27u ? largest >> 23 : 27u;
        return {__uint_as_float((264u - exponent) << 23), __uint_as_float((exponent - 10u) << 23)};
    }
};

// The exponent of the power of two at or below a half; of next to nothing, that of the smallest half.
DEVICE float exponent_of(float half) {
    int32_t exponent = int32_t(__float_as_uint(half) >> 23 & 255u) - 127;
    return float(exponent > -24 ? exponent : -24);
}

// Halves from one vector to the next in shared memory: eight neighbouring ones lie in different banks.
template <int D>
constexpr uint32_t kPitch = D + 8;

// 8 neighbouring halves as floats.
DEVICE void floats_of_halves(uint4 bits, float* out) {
    uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (uint32_t w = 0; w < 4; w++) {
        float2 two = floats_of_half2(words[w]);
        out[2 * w] = two.x;
        out[2 * w + 1] = two.y;
    }
}

// 16 of them.
DEVICE void floats_of_halves(const uint4 (&bits)[2], float (&out)[16]) {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) floats_of_halves(bits[i], out + 8 * i);
}
