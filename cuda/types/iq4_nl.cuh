// Types whose weights are one of 16 integers with a scale: IQ4_NL, IQ4_XS, MXFP4, NVFP4, and the codebook
// types IQ1_*, IQ2_* and IQ3_*, whose points have few distinct coordinates. value = table[index] * scale of
// 16 weights.
//
// The upload converts all of them to one format. A chunk is 32 elements in order.
//
//   128 bytes: the table of 16 int8, and a float factor
//   indices, 16 bytes per chunk, in order from the low bits up, over all rows
//   scales, 2 bytes per chunk, over all rows: two int8, one per 16 elements; or an f16; or a bf16; or two
//   8-bit floats (4 exponent bits, 3 mantissa bits)
//   with two int8: an f16 per block of 8 chunks, which multiplies them, over all rows
#pragma once

#include "../lib/affine.cuh"

struct IQ4NL;
template <>
constexpr bool kOfKinds<IQ4NL> = true;
template <>
constexpr bool kTwoScales<IQ4NL> = true;

struct IQ4NL : AffineCodes<IQ4NL, 32, 16> {
    static constexpr int kUnroll = 3;
    static constexpr bool kSigned = true;
    static constexpr uint32_t kHead = 128;
    enum : uint32_t { kInts8 = 0, kHalf = 1, kBfloat = 2, kFloats8 = 3 };
    struct Kind {
        uint32_t table[4];
        float factor;
        uint32_t scales;
    };
    struct Row {
        const uint8_t* indices;
        const uint16_t* scales;
        const uint16_t* blocks;
    };
    struct Chunk {
        uint4 indices;
        uint16_t scales, block;
    };

    DEVICE static uint32_t scales_kind(const LinearParams& w) { return w.kind & 3u; }
    DEVICE static Kind kind(const LinearParams& w) {
        uint4 table = load16(w.data);
        return {{table.x, table.y, table.z, table.w}, __uint_as_float(load4(w.data + 16)), scales_kind(w)};
    }

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 32;
        elem = col % 32;
    }

    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        uint64_t all = uint64_t(w.rows) * w.chunks, before = uint64_t(row) * w.chunks;
        const uint8_t* scales = w.data + kHead + all * 16;
        const uint16_t* blocks = reinterpret_cast<const uint16_t*>(scales) + all + before / 8;
        bool has_blocks = scales_kind(w) == kInts8;
        return {w.data + kHead + before * 16, reinterpret_cast<const uint16_t*>(scales) + before,
                has_blocks ? blocks : nullptr};
    }

    DEVICE static Chunk load(Row row, uint32_t chunk) {
        return {load_stream16(row.indices + chunk * 16), row.scales[chunk],
                row.blocks ? row.blocks[chunk / 8] : uint16_t(0)};
    }

    DEVICE static void scales_of(const Kind& kind, uint32_t scales, uint32_t block, float (&out)[2]) {
        if (kind.scales == kInts8) {
            float by = float_of_half(block) * kind.factor;
            out[0] = by * static_cast<float>(static_cast<int8_t>(scales));
            out[1] = by * static_cast<float>(static_cast<int8_t>(scales >> 8));
        } else if (kind.scales == kFloats8) {
            // Read as f16 these scales are too small by 2^7, which `factor` corrects.
            out[0] = float_of_half((scales & 127u) << 7) * kind.factor;
            out[1] = float_of_half((scales >> 8 & 127u) << 7) * kind.factor;
        } else {
            out[0] = out[1] = kind.scales == kHalf ? float_of_half(scales) : __uint_as_float(scales << 16);
        }
    }
    DEVICE static Affine affine(const Chunk& chunk, uint32_t, const Kind& kind, uint32_t group) {
        float scales[2];
        scales_of(kind, chunk.scales, chunk.block, scales);
        return {group ? scales[1] : scales[0], 0.0f};
    }

    // Looks up the low four indices of a word; one byte each.
    DEVICE static uint32_t looked_up(const Kind& kind, uint32_t indices) {
        uint32_t in_half = indices & 0x7777u;
        uint32_t lower = __byte_perm(kind.table[0], kind.table[1], in_half);
        uint32_t upper = __byte_perm(kind.table[2], kind.table[3], in_half);
        return __byte_perm(lower, upper, 0x3210u | (indices >> 1 & 0x4444u));
    }

    DEVICE static uint32_t bytes(const Chunk& chunk, uint32_t quad, const Kind& kind) {
        uint32_t words[4] = {chunk.indices.x, chunk.indices.y, chunk.indices.z, chunk.indices.w};
        return looked_up(kind, words[quad / 2] >> (quad % 2 * 16));
    }

    // lib/block_codes.cuh
    using Codes = ScaledCodes;
    struct Part {
        uint16_t indices[2], scales, of_blocks;
    };
    DEVICE static Part part(Row row, uint32_t block, uint32_t member, Kind) {
        const uint16_t* indices = reinterpret_cast<const uint16_t*>(row.indices + block * 16) + member;
        return {{indices[0], indices[4]}, row.scales[block],
                row.blocks ? row.blocks[block / 8] : uint16_t(0)};
    }
    DEVICE static Codes codes(const Part& part, uint32_t, uint32_t, const Kind& kind) {
        Codes out;
        scales_of(kind, part.scales, part.of_blocks, out.scales);
#pragma unroll
        for (int t = 0; t < 2; t++) out.words[t] = looked_up(kind, part.indices[t]);
        return out;
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        Row at = IQ4NL::row(w, row);
        uint32_t chunk = col / 32, index = at.indices[col / 2] >> (col % 2 * 4) & 15u;
        float scales[2];
        scales_of(kind(w), at.scales[chunk], at.blocks ? at.blocks[chunk / 8] : 0, scales);
        float scale = col / 16 % 2 ? scales[1] : scales[0];
        return static_cast<float>(static_cast<int8_t>(w.data[index])) * scale;
    }
};
