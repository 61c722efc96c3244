// F16: half precision floats.
#pragma once

#include "../lib/elements.cuh"
#include "../lib/halves.cuh"

struct F16 : Elements<F16, 8> {
    DEVICE static void floats(Chunk chunk, float (&out)[8]) { floats_of_halves(chunk, out); }

    // A lane's share of 32 columns from `col` on, for tensor cores: 4 of the first 16 and 4 of the last 16,
    // as f16.
    struct Halves {
        uint32_t words[4];
    };

    DEVICE static Halves halves(const LinearParams& w, uint32_t row, uint32_t col, uint32_t member) {
        const uint8_t* at = F16::row(w, row);
        Halves out = {};
#pragma unroll
        for (int group = 0; group < 2; group++) {
            uint32_t first = col + 16 * group + 4 * member;
            // Chunks are padded with zeros, but rows are not padded to 32 columns.
            if (first >= w.chunks * kElems) continue;
            uint2 four = load8(at + first * 2);
            out.words[2 * group] = four.x;
            out.words[2 * group + 1] = four.y;
        }
        return out;
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        return float_of_half(reinterpret_cast<const uint16_t*>(F16::row(w, row))[col]);
    }
};
