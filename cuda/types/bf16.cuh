// BF16: the upper 16 bits of f32.
#pragma once

#include "../lib/elements.cuh"

struct BF16 : Elements<BF16, 8> {
    static constexpr int kRowsUnroll = 1;

    DEVICE static void floats(Chunk chunk, float (&out)[8]) {
        uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float2 two = floats_of_bfloat2(words[i]);
            out[2 * i] = two.x;
            out[2 * i + 1] = two.y;
        }
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        uint32_t bits = reinterpret_cast<const uint16_t*>(BF16::row(w, row))[col];
        return floats_of_bfloat2(bits).x;
    }
};
