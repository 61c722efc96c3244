// F32: single precision floats.
#pragma once

#include "../lib/elements.cuh"

struct F32 : Elements<F32, 4> {
    DEVICE static void floats(Chunk chunk, float (&out)[4]) {
        out[0] = __uint_as_float(chunk.x);
        out[1] = __uint_as_float(chunk.y);
        out[2] = __uint_as_float(chunk.z);
        out[3] = __uint_as_float(chunk.w);
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        return reinterpret_cast<const float*>(F32::row(w, row))[col];
    }
};
