// IQ2_BN, IQ1_BN and IQ2_BN_R4: ternary weights, 2 bits each, value = (code - 1) * scale, one f32 scale per
// row.
//
// The upload converts all three to these planes: codes, 16 bytes per 64 weights, byte b having weights b, b +
// 16, b + 32 and b + 48 from the low bits up; then one scale per row. A chunk is 64 weights.
#pragma once

#include "../lib/ternary.cuh"

struct IQ2_BN;
template <>
constexpr bool kRowScales<IQ2_BN> = true;

struct IQ2_BN : Ternary<IQ2_BN> {
    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 64;
        elem = col % 64;
    }

    DEVICE static constexpr int shift(int group) { return 2 * group; }

    DEVICE static float scale(const LinearParams& w, uint32_t row) {
        return reinterpret_cast<const float*>(w.data + uint64_t(w.rows) * w.chunks * 16)[row];
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        uint32_t byte = w.data[(uint64_t(row) * w.chunks + col / 64) * 16 + col % 16];
        return (static_cast<float>(code(byte, col % 64 / 16)) - 1.0f) * scale(w, row);
    }
};
