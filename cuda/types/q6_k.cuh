// Q6_K: 256 6-bit integers in 16 groups, with int8 group scales and one f16 scale; value = (q - 32) * group
// scale * scale.
//
// Weights are in octets (lib/octets.cuh). A chunk is 64 elements: those of one half block h (of 128) whose
// index modulo 32 is below 16 (t = 0) or not (t = 1): 128 h + 32 i + 16 t + (0 .. 15), i = 0 .. 3. Each of
// its four groups has one group scale. An octet has
//
//   low 4 bits, in runs 0 to 3: runs 2 h and 2 h + 1 have i = 0 and 1 in low nibbles, 2 and 3 in high nibbles
//   high 2 bits, in runs 4 and 5, one per half block: i = 0 in the low bits to i = 3 in the high bits
//   group scales, [8 rows, 4 chunks, 4 groups]
//   block scales, one f16 per row
#pragma once

#include "../lib/affine.cuh"
#include "../lib/octets.cuh"

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
    using Row = OctetRow;
    struct Chunk {
        uint4 low[2], high;
        uint32_t groups;
        uint16_t scale;
    };

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 128 * 2 + col % 32 / 16;
        elem = col % 128 / 32 * 16 + col % 16;
    }

    static constexpr uint32_t kGroups = 6 * kRunBytes, kScales = kGroups + 16 * OCTET_ROWS;
    DEVICE static constexpr uint32_t octet_bytes(NoKind) { return kScales + 2 * OCTET_ROWS; }

    // Row 0 to 7 of octets.
    DEVICE static Row row_of(const uint8_t* octets, uint32_t row, NoKind) { return {octets, row}; }
    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        uint64_t eight = uint64_t(row / OCTET_ROWS) * (w.chunks / 4);
        return {w.data + eight * octet_bytes({}), row % OCTET_ROWS};
    }
    // Group scales of a chunk in an octet, and the scale of a row.
    DEVICE static uint32_t groups_of(const uint8_t* octet, uint32_t row, uint32_t chunk) {
        return load4(octet + kGroups + row * 16 + chunk * 4);
    }
    DEVICE static uint16_t scale_at(const uint8_t* octet, uint32_t row) {
        return reinterpret_cast<const uint16_t*>(octet + kScales)[row];
    }

    // A lane's chunks are at distances of a multiple of 8 (lib/linear.cuh), so it has the same place in each
    // octet.
    DEVICE static Chunk load(Row row, uint32_t chunk) {
        const uint8_t* octet = row.octets + chunk / 4 * octet_bytes({});
        uint32_t own = threadIdx.x % 4, half = own / 2, t = own % 2;
        const uint8_t* low = octet + row.piece(2 * half, t);
        return {{load_stream16(low), load_stream16(low + kRunBytes)},
                load_stream16(octet + row.piece(4 + half, t)),
                groups_of(octet, row.row, own),
                scale_at(octet, row.row)};
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
        const uint8_t* octet = row.octets + block / 8 * octet_bytes({});
        uint32_t half = block % 8 / 4, i = block % 4;
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            out.low[t] = load4(octet + row.piece(2 * half + i % 2, t) + 4 * member);
            out.high[t] = load4(octet + row.piece(4 + half, t) + 4 * member);
            out.groups[t] = groups_of(octet, row.row, 2 * half + t);
        }
        out.scale = scale_at(octet, row.row);
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

    // lib/linear_octets.cuh: writes both scales of blocks 4 half .. 4 half + 3 of a row to `to + 8 half`.
    struct Head {
        uint32_t groups[2];
        uint16_t scale;
    };
    DEVICE static Head octet_head(const Row& row, uint32_t half) {
        uint2 groups = load8(row.octets + kGroups + row.row * 16 + half * 8);
        return {{groups.x, groups.y}, scale_at(row.octets, row.row)};
    }
    DEVICE static void octet_scales(const Head& head, uint32_t half, NoKind, float* to) {
        float scale = float_of_half(head.scale), first[4], second[4];
        floats_of_bytes(head.groups[0], first);
        floats_of_bytes(head.groups[1], second);
#pragma unroll
        for (int i = 0; i < 4; i += 2)
            store4(to + 8 * half + 2 * i, scale * first[i], scale * second[i], scale * first[i + 1],
                scale * second[i + 1]);
    }

    // lib/linear_octets_many.cuh: a stage is a half block, whose high bits follow its low bits.
    static constexpr uint32_t kStages = 2, kMore = 4 * kRunBytes, kMoreBytes = kRunBytes;
    DEVICE static void stage_codes(
        const uint8_t* const (&halves)[2], uint32_t block, uint32_t (&out)[2]
    ) {
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) {
            uint32_t low = load4(halves[t] + block % 2 * kRunBytes) >> (block / 2 * 4);
            uint32_t high = load4(halves[t] + 2 * kRunBytes) >> (2 * block);
            out[t] = bytes_less<32>((low & 0x0f0f0f0fu) | (high & 0x03030303u) << 4);
        }
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        uint32_t chunk, elem;
        place(col, chunk, elem);
        uint32_t i = elem / 16, byte = elem % 16, half = chunk % 4 / 2, t = chunk % 2;
        Row at = Q6K::row(w, row);
        const uint8_t* octet = at.octets + chunk / 4 * octet_bytes({});
        uint32_t low = octet[at.piece(2 * half + i % 2, t) + byte] >> (i / 2 * 4) & 15u;
        uint32_t high = octet[at.piece(4 + half, t) + byte] >> (2 * i) & 3u;
        float group = static_cast<float>(static_cast<int8_t>(groups_of(octet, at.row, chunk % 4) >> (8 * i)));
        return float_of_half(scale_at(octet, at.row)) * group * (static_cast<float>(low | high << 4) - 32.0f);
    }
};
