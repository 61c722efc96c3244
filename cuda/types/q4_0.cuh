// Q4_0: 32 4-bit integers with one f16 scale, value = (q - 8) * scale.
//
// Weights are in octets (lib/octets.cuh). A chunk is a block: byte b has element b in its low nibble and
// element b + 16 in its high nibble. An octet has
//
//   codes less 8 as signed nibbles: piece t of run p has block 2 p + t
//   scales, f16, [8 rows, 8 blocks]
//
// A nibble in the high bits of a byte is 16 times the code, as a signed byte; scales are 1/16 of the file's.
#pragma once

#include "../lib/affine.cuh"
#include "../lib/octets.cuh"

struct Q4_0 : AffineCodes<Q4_0, 32, 32> {
    static constexpr int kUnroll = 4;
    static constexpr bool kSigned = true;
    using Row = OctetRow;
    struct Chunk {
        uint4 ints;
        uint16_t scale;
    };

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) {
        chunk = col / 32;
        elem = col % 32;
    }

    static constexpr uint32_t kScales = 4 * kRunBytes;
    DEVICE static constexpr uint32_t octet_bytes(NoKind) { return kScales + 16 * OCTET_ROWS; }

    // Row 0 to 7 of octets.
    DEVICE static Row row_of(const uint8_t* octets, uint32_t row, NoKind) { return {octets, row}; }
    DEVICE static Row row(const LinearParams& w, uint32_t row) {
        uint64_t eight = uint64_t(row / OCTET_ROWS) * ((w.chunks + 7) / 8);
        return {w.data + eight * octet_bytes({}), row % OCTET_ROWS};
    }
    DEVICE static const uint8_t* octet_of(Row row, uint32_t block) {
        return row.octets + block / 8 * octet_bytes({});
    }
    DEVICE static const uint8_t* ints_of(Row row, uint32_t block) {
        return octet_of(row, block) + row.piece(block % 8 / 2, block % 2);
    }
    DEVICE static uint16_t scale_at(Row row, uint32_t block) {
        return reinterpret_cast<const uint16_t*>(octet_of(row, block) + kScales + row.row * 16)[block % 8];
    }
    DEVICE static float scale_of(uint16_t bits) { return float_of_half(bits) * 0.0625f; }

    // A lane's chunks are at distances of a multiple of 8 (lib/linear.cuh), so it has the same place in each
    // octet.
    DEVICE static Chunk load(Row row, uint32_t chunk) {
        const uint8_t* octet = octet_of(row, chunk);
        uint32_t own = threadIdx.x % 8;
        return {load_stream16(octet + row.piece(own / 2, own % 2)),
                *reinterpret_cast<const uint16_t*>(octet + kScales + row.row * 16 + own * 2)};
    }

    DEVICE static Affine affine(const Chunk& chunk, uint32_t, NoKind, uint32_t) {
        return {scale_of(chunk.scale), 0.0f};
    }

    // Low or high nibbles of a word.
    DEVICE static uint32_t nibbles(uint32_t word, uint32_t high) {
        return (high ? word : word << 4) & 0xf0f0f0f0u;
    }
    DEVICE static uint32_t bytes(const Chunk& chunk, uint32_t quad, NoKind) {
        uint32_t words[4] = {chunk.ints.x, chunk.ints.y, chunk.ints.z, chunk.ints.w};
        return nibbles(words[quad % 4], quad / 4);
    }

    // lib/block_codes.cuh
    using Codes = ScaledCodes;
    struct Part {
        uint32_t ints;
        uint16_t scale;
    };
    DEVICE static Part part(Row row, uint32_t block, uint32_t member) {
        return {load4(ints_of(row, block) + 4 * member), scale_at(row, block)};
    }
    DEVICE static Codes codes(const Part& part, uint32_t, uint32_t) {
        float scale = scale_of(part.scale);
        return {{nibbles(part.ints, 0), nibbles(part.ints, 1)}, {scale, scale}};
    }

    // lib/linear_octets.cuh: writes the scales of blocks 4 half .. 4 half + 3 of a row to `to + 4 half`.
    using Head = uint2;
    DEVICE static Head octet_head(const Row& row, uint32_t half) {
        return load8(row.octets + kScales + row.row * 16 + half * 8);
    }
    DEVICE static void octet_scales(const Head& four, uint32_t half, NoKind, float* to) {
        float2 first = floats_of_half2(four.x), last = floats_of_half2(four.y);
        store4(to + 4 * half, first.x * 0.0625f, first.y * 0.0625f, last.x * 0.0625f, last.y * 0.0625f);
    }

    // lib/linear_octets_many.cuh
    static constexpr uint32_t kStages = 2, kMore = 0, kMoreBytes = 0;
    DEVICE static void stage_codes(
        const uint8_t* const (&halves)[2], uint32_t block, uint32_t (&out)[2]
    ) {
        uint32_t word = load4(halves[block % 2] + block / 2 * kRunBytes);
        out[0] = nibbles(word, 0);
        out[1] = nibbles(word, 1);
    }

    DEVICE static float value(const LinearParams& w, uint32_t row, uint32_t col) {
        Row at = Q4_0::row(w, row);
        uint32_t q = ints_of(at, col / 32)[col % 16] >> (col % 32 / 16 * 4) & 15u;
        return (static_cast<float>(q ^ 8u) - 8.0f) * float_of_half(scale_at(at, col / 32));
    }
};
