// Loads of four neighbouring floats.
#pragma once

#include "../simt.h"

// Columns `col` to `col + 3` of a vector; columns past its end are 0. Whole: cols is a multiple of 4.
template <bool Whole>
DEVICE void load_quad(const float* from, uint32_t col, uint32_t cols, float (&to)[4]) {
    if (Whole || cols % 4 == 0) {
        float4 quad = *reinterpret_cast<const float4*>(from + col);
        to[0] = quad.x;
        to[1] = quad.y;
        to[2] = quad.z;
        to[3] = quad.w;
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) to[i] = col + i < cols ? from[col + i] : 0.0f;
    }
}
