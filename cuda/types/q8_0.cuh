// Q8_0: 32 int8 with one f16 scale, value = q * scale.
//
// Weights are in octets (lib/octets.cuh). A chunk is 16 integers and their scale. An octet has
//
//   integers: run b has block b, a chunk per piece
//   scales, f16, [8 rows, 8 blocks]
#pragma once

#include "../lib/affine.cuh"
#include "../lib/octets.cuh"

struct Q8_0 : AffineCodes<Q8_0, 16, 16> {
    static constexpr int kUnroll = 5;
    static constexpr int kRowsUnroll = 2;
    static constexpr bool kSigned = true;
    using Row = OctetRow;
    struct Chunk {
        uint4 ints;
        uint16_t scale;
    };

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 16;
        elem = col % 16;
    }

    static constexpr uint32_t kScales = 8 * kRunBytes;
    DEVICE static constexpr uint32_t octet_bytes(NoKind) { return kScales + 16 * OCTET_ROWS; }

    // Row 0 to 7 of octets.
    DEVICE static Row row_of(const uint8_t* octets, uint32_t row, NoKind) { return {octets, row}; }
    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        uint64_t eight = uint64_t(row / OCTET_ROWS) * ((w.chunks + 15) / 16);
        return {w.data + eight * octet_bytes({}), row % OCTET_ROWS};
    }
    DEVICE static const uint8_t* octet_of(Row row, uint32_t block) {
        return row.octets + block / 8 * octet_bytes({});
    }
    // Integers of half t of a block, and its scale.
    DEVICE static const uint8_t* ints_of(Row row, uint32_t block, uint32_t t) {
        return octet_of(row, block) + row.piece(block % 8, t);
    }
    DEVICE static uint16_t scale_at(Row row, uint32_t block) {
        return reinterpret_cast<const uint16_t*>(octet_of(row, block) + kScales + row.row * 16)[block % 8];
    }

    // A lane's chunks are at distances of a multiple of 8 (lib/linear.cuh), so it has the same place in each
    // half octet.
    DEVICE static Chunk load(Row row, uint32_t chunk) {
        const uint8_t* octet = row.octets + chunk / 16 * octet_bytes({});
        uint32_t own = threadIdx.x % 8, last = chunk / 8 % 2;
        return {load_stream16(octet + last * 4 * kRunBytes + row.piece(own / 2, own % 2)),
                *reinterpret_cast<const uint16_t*>(octet + kScales + row.row * 16 + last * 8 + own / 2 * 2)};
    }

    DEVICE static Affine affine(const Chunk& chunk, uint32_t, NoKind, uint32_t) {
        return {float_of_half(chunk.scale), 0.0f};
    }

    DEVICE static uint32_t bytes(const Chunk& chunk, uint32_t quad, NoKind) {
        uint32_t words[4] = {chunk.ints.x, chunk.ints.y, chunk.ints.z, chunk.ints.w};
        return words[quad];
    }

    // lib/block_codes.cuh
    using Codes = ScaledCodes;
    struct Part {
        uint32_t ints[2];
        uint16_t scale;
    };
    DEVICE static Part part(Row row, uint32_t block, uint32_t member) {
        return {{load4(ints_of(row, block, 0) + 4 * member), load4(ints_of(row, block, 1) + 4 * member)},
                scale_at(row, block)};
    }
    DEVICE static Codes codes(const Part& part, uint32_t, uint32_t) {
        float scale = float_of_half(part.scale);
        return {{part.ints[0], part.ints[1]}, {scale, scale}};
    }

    // lib/linear_octets.cuh: writes the scales of blocks 4 half .. 4 half + 3 of a row to `to + 4 half`.
    using Head = uint2;
    DEVICE static Head octet_head(const Row& row, uint32_t half) {
        return load8(row.octets + kScales + row.row * 16 + half * 8);
    }
    DEVICE static void octet_scales(const Head& four, uint32_t half, NoKind, float* to) {
        float2 first = floats_of_half2(four.x), last = floats_of_half2(four.y);
        store4(to + 4 * half, first.x, first.y, last.x, last.y);
    }

    // lib/linear_octets_many.cuh
    static constexpr uint32_t kStages = 4, kMore = 0, kMoreBytes = 0;
    DEVICE static void stage_codes(
        const uint8_t* const (&halves)[2], uint32_t block, uint32_t (&out)[2]
    ) {
#pragma unroll
        for (uint32_t t = 0; t < 2; t++) out[t] = load4(halves[t] + block * kRunBytes);
    }

    // Four values from column `col` on, a multiple of 4.
    DEVICE static void quad(const LinearParams& w, uint32_t row, uint32_t col, float (&out)[4]) {
        Row at = Q8_0::row(w, row);
        float scale = float_of_half(scale_at(at, col / 32));
        floats_of_bytes(load4(ints_of(at, col / 32, col % 32 / 16) + col % 16), out);
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] *= scale;
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        Row at = Q8_0::row(w, row);
        int8_t q = static_cast<int8_t>(ints_of(at, col / 32, col % 32 / 16)[col % 16]);
        return static_cast<float>(q) * float_of_half(scale_at(at, col / 32));
    }
};
