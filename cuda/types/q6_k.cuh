// Q6_K: 256 6-bit integers in 16 groups, with int8 group scales and one f16 scale; value = (q - 32) * group
// scale * scale.
//
// Blocks of 210 bytes do not allow 16-byte loads, so the upload splits them into planes. A chunk is 64
// elements: those of one half block h (of 128) whose index modulo 32 is below 16 (t = 0) or not (t = 1): 128
// h + 32 i + 16 t + (0 .. 15), i = 0 .. 3. Each of its four groups has one group scale. Four planes, each
// over all rows:
//
//   low 4 bits, 32 bytes per chunk: 16 bytes of i = 0 (low nibble) and 2 (high), then 16 of i = 1 and 3
//   high 2 bits, 16 bytes per chunk: i = 0 in the low bits to i = 3 in the high bits
//   group scales, 4 bytes per chunk: i = 0 .. 3
//   block scales, one f16 per block: chunks 4 b .. 4 b + 3
#pragma once

#include "../lib/affine.cuh"

struct Q6K;
template <>
constexpr bool kTwoScales<Q6K> = true;

// It has its own float product, which needs fewer registers.
struct Q6K : AffineCodes<Q6K, 64, 16> {
    static constexpr int kUnroll = 2;
    // lib/affine.cuh
    static constexpr int kZeroPoint = 32;
    // lib/by_block.cuh
    static constexpr bool kHalves = true;
    struct Row {
        const uint8_t* low;
        const uint8_t* high;
        const uint32_t* groups;
        const uint16_t* scales;
    };
    struct Chunk {
        uint4 low[2], high;
        uint32_t groups;
        uint16_t scale;
    };

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 128 * 2 + col % 32 / 16;
        elem = col % 128 / 32 * 16 + col % 16;
    }

    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        uint64_t all = uint64_t(w.rows) * w.chunks, before = uint64_t(row) * w.chunks;
        const uint8_t* high = w.data + all * 32;
        const uint8_t* groups = high + all * 16;
        const uint8_t* scales = groups + all * 4;
        return {w.data + before * 32, high + before * 16, reinterpret_cast<const uint32_t*>(groups) + before,
                reinterpret_cast<const uint16_t*>(scales) + before / 4};
    }

    DEVICE static Chunk load(Row row, uint32_t chunk) {
        return {{load_stream16(row.low + chunk * 32), load_stream16(row.low + chunk * 32 + 16)},
                load_stream16(row.high + chunk * 16),
                row.groups[chunk],
                row.scales[chunk / 4]};
    }

    template <int M>
    DEVICE static void dot(
        Acc (&sums)[M], const Chunk& chunk, const uint8_t* acts, uint32_t at, uint32_t chunks
    ) {
        uint32_t high[4] = {chunk.high.x, chunk.high.y, chunk.high.z, chunk.high.w};
        float scale = float_of_half(chunk.scale);
#pragma unroll(M > 1 ? 2 : 4)
        for (int i = 0; i < 4; i++) {
            const uint4& from = chunk.low[i % 2];
            uint32_t low[4] = {from.x, from.y, from.z, from.w};
            float part[M] = {};
#pragma unroll
            for (int quad = 0; quad < 4; quad++) {
                uint32_t q = (low[quad] >> (i / 2 * 4) & 0x0f0f0f0fu) |
                    (high[quad] >> (2 * i) & 0x03030303u) << 4;
                float w[4];
                floats_of_codes<kZeroPoint>(q, w);
#pragma unroll
                for (int m = 0; m < M; m++) {
                    uint4 x = load16(acts + m * (chunks * kElems * 4) + ((4 * i + quad) * chunks + at) * 16);
                    part[m] = fmaf(w[0], __uint_as_float(x.x), part[m]);
                    part[m] = fmaf(w[1], __uint_as_float(x.y), part[m]);
                    part[m] = fmaf(w[2], __uint_as_float(x.z), part[m]);
                    part[m] = fmaf(w[3], __uint_as_float(x.w), part[m]);
                }
            }
            float group = scale * static_cast<float>(static_cast<int8_t>(chunk.groups >> (8 * i)));
#pragma unroll
            for (int m = 0; m < M; m++) sums[m] = fmaf(group, part[m], sums[m]);
        }
    }

    DEVICE static float scale_of(uint32_t scale, uint32_t groups, uint32_t i) {
        return float_of_half(scale) * static_cast<float>(static_cast<int8_t>(groups >> (8 * i)));
    }
    DEVICE static Affine affine(const Chunk& chunk, uint32_t, NoKind, uint32_t i) {
        return {scale_of(chunk.scale, chunk.groups, i), 0.0f};
    }

    DEVICE static uint32_t bytes(const Chunk& chunk, uint32_t quad, NoKind) {
        uint32_t i = quad / 4;
        const uint4& from = chunk.low[i % 2];
        uint32_t low[4] = {from.x, from.y, from.z, from.w};
        uint32_t high[4] = {chunk.high.x, chunk.high.y, chunk.high.z, chunk.high.w};
        return (low[quad % 4] >> (i / 2 * 4) & 0x0f0f0f0fu) | (high[quad % 4] >> (2 * i) & 0x03030303u) << 4;
    }

    // lib/block_codes.cuh
    using Codes = ScaledCodes;
    struct Part {
        uint32_t low[2], high[2], groups[2];
        uint16_t scale;
    };
    DEVICE static Part part(Row row, uint32_t block, uint32_t member) {
        Part out;
        uint32_t first = block / 4 * 2, i = block % 4;
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            out.low[t] = load4(row.low + (first + t) * 32 + i % 2 * 16 + 4 * member);
            out.high[t] = load4(row.high + (first + t) * 16 + 4 * member);
            out.groups[t] = row.groups[first + t];
        }
        out.scale = row.scales[block / 8];
        return out;
    }
    DEVICE static Codes codes(const Part& part, uint32_t block, uint32_t) {
        Codes out;
        uint32_t i = block % 4;
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            uint32_t high = (part.high[t] >> (2 * i) & 0x03030303u) << 4;
            out.words[t] = bytes_less<32>((part.low[t] >> (i / 2 * 4) & 0x0f0f0f0fu) | high);
            out.scales[t] = scale_of(part.scale, part.groups[t], i);
        }
        return out;
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        uint32_t chunk, elem;
        place(col, chunk, elem);
        uint32_t i = elem / 16, byte = elem % 16;
        Row at = Q6K::row(w, row);
        uint32_t low = at.low[chunk * 32 + i % 2 * 16 + byte] >> (i / 2 * 4) & 15u;
        uint32_t high = at.high[chunk * 16 + byte] >> (2 * i) & 3u;
        float group = static_cast<float>(static_cast<int8_t>(at.groups[chunk] >> (8 * i)));
        return float_of_half(at.scales[chunk / 4]) * group * (static_cast<float>(low | high << 4) - 32.0f);
    }
};
