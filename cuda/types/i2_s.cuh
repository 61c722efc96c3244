// I2_S: ternary weights, 2 bits each, value = code - 1, one f32 scale per tensor.
//
// Layout of the file: a 32-byte block has 128 weights in 4 groups of 32; byte b has weight b of each group,
// group 0 in the high bits. A chunk is half a block.
#pragma once

#include "../lib/ternary.cuh"

struct I2S : Ternary<I2S> {
    // Chunk of a column, and its index there: 16 elements of group 0, 16 of group 1, ...
    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 128 * 2 + col % 32 / 16;
        elem = col % 128 / 32 * 16 + col % 16;
    }

    DEVICE static constexpr int shift(int group) { return 6 - 2 * group; }

    // Code 3, which no quantiser writes, has the value 0.
    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        uint32_t byte = w.data[uint64_t(row) * w.chunks * 16 + col / 128 * 32 + col % 32];
        uint32_t code = I2S::code(byte, col % 128 / 32);
        return code == 3 ? 0.0f : (static_cast<float>(code) - 1.0f) * w.tensor_scale;
    }
};
