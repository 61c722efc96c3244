// TQ2_0: ternary weights, 2 bits each, value = (code - 1) * scale, one f16 scale per block of 256.
//
// Blocks of 66 bytes do not allow 16-byte loads, so the upload splits them: all codes, [rows, cols / 4]
// bytes, then all scales, [rows, cols / 256]. TQ1_0 packs five trits per byte, which saves less bandwidth
// than its arithmetic costs, so the upload unpacks it to the same planes. Codes are stored as in I2_S, but
// with group 0 in the low bits: a chunk is 16 bytes, 64 weights, 16 of each group; four chunks are a block.
// sum((code - 1) q) = sum(code q) - sum(q), where the sums of q per chunk are precomputed (lib/input.cuh).
#pragma once

#include "../lib/input.cuh"

struct TQ2_0 {
    static constexpr bool kInts = true;
    static constexpr bool kChunkSums = true;
    static constexpr int kElems = 64;
    static constexpr int kUnroll = 5;
    static constexpr int kRowsUnroll = 1;
    // lib/input.cuh
    static constexpr uint32_t kBlockQuads = 4;
    using Acc = float;
    struct Row {
        const uint8_t* codes;
        const uint16_t* scales;
        DEVICE explicit operator bool() const { return codes != nullptr; }
    };
    struct Chunk {
        uint4 codes;
        uint16_t scale;
    };

    // As in I2_S.
    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 128 * 2 + col % 32 / 16;
        elem = col % 128 / 32 * 16 + col % 16;
    }

    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        const uint8_t* scales = w.data + uint64_t(w.rows) * w.chunks * 16;
        return {w.data + uint64_t(row) * w.chunks * 16,
                reinterpret_cast<const uint16_t*>(scales) + uint64_t(row) * (w.chunks / 4)};
    }

    DEVICE static uint4 load_codes(Row row, uint32_t chunk) { return load_stream16(row.codes + chunk * 16); }
    DEVICE static float scale(Row row, uint32_t chunk) { return float_of_half(row.scales[chunk / 4]); }
    DEVICE static Chunk load(Row row, uint32_t chunk) {
        return {load_codes(row, chunk), row.scales[chunk / 4]};
    }

    // Four neighbouring codes of one group.
    DEVICE static uint32_t codes(uint32_t word, int group) { return word >> (2 * group) & 0x03030303u; }

    template <int M>
    DEVICE static void dot(
        Acc (&sums)[M], const Chunk& chunk, const uint8_t* acts, uint32_t at, uint32_t chunks
    ) {
        uint32_t words[4] = {chunk.codes.x, chunk.codes.y, chunk.codes.z, chunk.codes.w};
        float scale = float_of_half(chunk.scale);
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint8_t* row = acts + m * act_row_bytes<TQ2_0>(chunks);
            int32_t sum = -chunk_sums<TQ2_0>(row, chunks)[at];
#pragma unroll
            for (int group = 0; group < 4; group++) {
                uint4 q = load16(row + (group * chunks + at) * 16);
                uint32_t quads[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    sum = __dp4a(static_cast<int32_t>(codes(words[i], group)),
                        static_cast<int32_t>(quads[i]), sum);
                }
            }
            sums[m] = fmaf(scale, static_cast<float>(sum), sums[m]);
        }
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        Row at = TQ2_0::row(w, row);
        uint32_t code = at.codes[col / 128 * 32 + col % 32] >> (2 * (col % 128 / 32)) & 3u;
        return (static_cast<float>(code) - 1.0f) * float_of_half(at.scales[col / 256]);
    }
};
