// Trellis codes: keys in the basis of their KV head and in two groups of head_dim / 2 elements, with 4-bit
// codes of the first and 2-bit codes of the second, and values in 3-bit codes
// (ggml-types/src/turboquant/trellis.rs).
//
// The value of an element follows from its code and the one or two codes before it, and the first element of
// a vector (of a group) comes after the last one. Codes are stored in ascending order, low bits first, so the
// codes of neighbouring elements are one field of bits. It is the index of a table of two values: 12 bits for
// 4-bit codes, 8 for 2-bit codes, 9 for 3-bit codes. The tables are in shared memory.
#pragma once

#include "codes.cuh"
#include "rotate.cuh"

// The tables in shared memory, once load_tables has copied them.
DEVICE TrellisTables& shared_tables() {
    SHARED(TrellisTables, tables, 1);
    return tables[0];
}

// Kernels call it first, and have a barrier before the first look-up.
DEVICE void load_tables(const CodedKvParams& kv) {
    constexpr uint32_t kPieces = sizeof(TrellisTables) / 16;
    const uint4* from = reinterpret_cast<const uint4*>(&kv.trellis->tables);
    uint4* to = reinterpret_cast<uint4*>(&shared_tables());
    for (uint32_t at = threadIdx.x; at < kPieces; at += blockDim.x) to[at] = load16(from + at);
}

// Two pairs of bytes, at offsets in bytes.
DEVICE uint32_t four_bytes(const uint32_t* table, uint32_t first, uint32_t second) {
    auto pair = [&](uint32_t offset) -> uint32_t {
        return *reinterpret_cast<const uint16_t*>(reinterpret_cast<const uint8_t*>(table) + offset);
    };
    return __byte_perm(pair(first), pair(second), 0x5410u);
}

// Values of eight 4-bit codes, those of `word`, after the last code of the word before.
DEVICE void bytes_of_fours(uint32_t word, uint32_t before, uint32_t& first, uint32_t& second) {
    const uint32_t* table = shared_tables().four;
    // Fields of 12 bits, times two bytes.
    uint32_t codes = word << 4 | before >> 28;
    first = four_bytes(table, codes << 1 & 0x1ffeu, codes >> 7 & 0x1ffeu);
    second = four_bytes(table, codes >> 15 & 0x1ffeu, word >> 19 & 0x1ffeu);
}

// Values of eight 2-bit codes, in bits 4 to 19, after two others in the bits below.
DEVICE void bytes_of_twos(uint32_t codes, uint32_t& first, uint32_t& second) {
    const uint32_t* table = shared_tables().two;
    first = four_bytes(table, codes << 1 & 0x1feu, codes >> 3 & 0x1feu);
    second = four_bytes(table, codes >> 7 & 0x1feu, codes >> 11 & 0x1feu);
}

// Values of two neighbouring 3-bit codes as f16, of a field that begins at bit 6 i of `codes`.
DEVICE uint32_t halves_of_threes(uint32_t codes, uint32_t i) {
    uint32_t offset = (i == 0 ? codes << 2 : codes >> (6 * i - 2)) & 0x7fcu;
    return *reinterpret_cast<const uint32_t*>(
        reinterpret_cast<const uint8_t*>(shared_tables().three) + offset);
}

// A key is the pieces of the first group, 2 words each, then those of the second group, a word each. The
// scales are two bytes, the first group's first.
struct TrellisKeys {
    static constexpr uint32_t kVectorBits = 3, kScales = 1;
    static constexpr bool kGroups = true, kSearched = true;
    struct Query {};
    struct Piece {
        uint32_t words[2];
        // Word before, with the codes before the piece in its highest bits.
        uint32_t before;
    };

    DEVICE static Piece load(const uint8_t* vector, uint32_t n_pieces, uint32_t piece) {
        const uint32_t *words = reinterpret_cast<const uint32_t*>(vector), *second = words + n_pieces;
        uint32_t half = n_pieces / 2, at = piece - half;
        if (piece >= half) return {{second[at], 0}, second[(at == 0 ? half : at) - 1]};
        return {{words[2 * piece], words[2 * piece + 1]}, words[(piece == 0 ? n_pieces : 2 * piece) - 1]};
    }

    template <class Code>
    DEVICE static void pack(uint8_t* vector, uint32_t n_pieces, uint32_t piece, const Code* codes) {
        uint32_t* words = reinterpret_cast<uint32_t*>(vector);
        uint32_t first = 0, second = 0, both = 0;
        for (uint32_t i = 0; i < 8; i++) {
            first |= uint32_t(codes[i]) << (4 * i);
            second |= uint32_t(codes[8 + i]) << (4 * i);
        }
        for (uint32_t i = 0; i < CODES_PIECE; i++) both |= uint32_t(codes[i]) << (2 * i);
        if (piece < n_pieces / 2) {
            words[2 * piece] = first;
            words[2 * piece + 1] = second;
        } else {
            words[n_pieces / 2 + piece] = both;
        }
    }

    // `in_second` is that of KeysInTrellises::key_table.
    DEVICE static void bytes(const Piece& piece, const uint32_t (&in_second)[2], uint32_t (&out)[4]) {
        if (in_second[0]) {
            bytes_of_twos(piece.words[0] << 4 | piece.before >> 28, out[0], out[1]);
            bytes_of_twos(piece.words[0] >> 12, out[2], out[3]);
        } else {
            bytes_of_fours(piece.words[0], piece.before, out[0], out[1]);
            bytes_of_fours(piece.words[1], piece.words[0], out[2], out[3]);
        }
    }

    // Scale of a group, for values in steps of 1 / 32.
    DEVICE static float scale(uint32_t, uint16_t codes, uint32_t group) {
        constexpr float kOfZero[2] = {
            -5.0f - TRELLIS_ONE_FIRST / kScaleSteps, -5.0f - TRELLIS_ONE_SECOND / kScaleSteps
        };
        uint32_t code = codes >> (8 * group) & 255u;
        float of_zero = group == 0 ? kOfZero[0] : kOfZero[1];
        return code == 0 ? 0.0f : exp2_fast(fmaf(float(code), 1.0f / kScaleSteps, of_zero));
    }
};

// A value is n_pieces words and then n_pieces half words: 48 bits per piece.
struct TrellisValues {
    static constexpr uint32_t kBits = 3, kVectorBits = 3, kScales = 1;
    static constexpr bool kGroups = false, kSearched = true;
    struct Query {};
    struct Piece {
        uint32_t low;
        // The half word, and that of the piece before, with the code before the piece in its highest bits.
        uint16_t top, before;

        // The codes of eight elements, after the one before them: 27 bits.
        DEVICE uint32_t eight(uint32_t i) const {
            return i == 0 ? low << 3 | uint32_t(before) >> 13 : low >> 21 | uint32_t(top) << 11;
        }
    };

    DEVICE static Piece load(const uint8_t* vector, uint32_t n_pieces, uint32_t piece) {
        const uint16_t* tops = reinterpret_cast<const uint16_t*>(vector + 4 * n_pieces);
        uint32_t low = reinterpret_cast<const uint32_t*>(vector)[piece];
        return {low, tops[piece], tops[(piece == 0 ? n_pieces : piece) - 1]};
    }

    // As attend_row.cuh loads a value: the pieces before are in the lanes of the quartet before, of which two
    // share a piece if there are fewer than 8.
    template <int N>
    struct Row : Codes3::Row<N> {
        DEVICE Piece piece(int i) const {
            uint32_t before;
            if (i == 0) {
                uint32_t last = this->tops[(N - 1) / 2] >> (16 * ((N - 1) % 2));
                before = __shfl_sync(kWarp, last, int((threadIdx.x + kWarpSize - 4) % kWarpSize));
            } else {
                before = this->tops[(i - 1) / 2] >> (16 * ((i - 1) % 2));
            }
            return {this->low[i], uint16_t(this->tops[i / 2] >> (16 * (i % 2))), uint16_t(before)};
        }
    };

    template <class Code>
    DEVICE static void pack(uint8_t* vector, uint32_t n_pieces, uint32_t piece, const Code* codes) {
        uint64_t all = 0;
        for (uint32_t i = 0; i < CODES_PIECE; i++) all |= uint64_t(codes[i]) << (3 * i);
        reinterpret_cast<uint32_t*>(vector)[piece] = uint32_t(all);
        reinterpret_cast<uint16_t*>(vector + 4 * n_pieces)[piece] = uint16_t(all >> 32);
    }

    // In steps of 1 / 32.
    DEVICE static void bytes(const Piece& piece, const uint32_t (&)[2], uint32_t (&out)[4]) {
        uint32_t all[8];
        halves(piece, {}, all);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            float2 two = floats_of_half2(all[i]);
            uint32_t low = uint32_t(int32_t(two.x * 32.0f)), high = uint32_t(int32_t(two.y * 32.0f));
            uint32_t both = __byte_perm(low, high, 0x0040u) & 0xffffu;
            out[i / 2] = i % 2 == 0 ? both : out[i / 2] | both << 16;
        }
    }

    DEVICE static void halves(const Piece& piece, const uint32_t (&)[4], uint32_t (&out)[8]) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) out[i] = halves_of_threes(piece.eight(i / 4), i % 4);
    }

    // Codes of two positions.
    struct Mixed {
        uint32_t eights[2][2];
    };

    DEVICE static Mixed mix(const Piece& a, const Piece& b) {
        return {{{a.eight(0), b.eight(0)}, {a.eight(1), b.eight(1)}}};
    }

    DEVICE static void pairs(
        const Mixed& mixed, uint32_t eight, const uint32_t (&)[4], uint32_t (&out)[8]
    ) {
        uint32_t a = eight ? mixed.eights[1][0] : mixed.eights[0][0],
            b = eight ? mixed.eights[1][1] : mixed.eights[0][1];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t of_a = halves_of_threes(a, i), of_b = halves_of_threes(b, i);
            out[2 * i] = __byte_perm(of_a, of_b, 0x5410u);
            out[2 * i + 1] = __byte_perm(of_a, of_b, 0x7632u);
        }
    }
};

struct TrellisCodes {
    using Keys = TrellisKeys;
    using Values = TrellisValues;

    // Whether the piece is one of the second group.
    DEVICE static void key_table(
        const CodedKvParams&, uint32_t piece, uint32_t n_pieces, uint32_t (&to)[2]
    ) {
        to[0] = piece >= n_pieces / 2;
        to[1] = 0;
    }

    DEVICE static Vector load(const CodedKvParams& kv, const float* from, uint32_t head, Part part) {
        if (part == Part::kValue) return load_rotated(kv, from);
        const float* shrink = kv.trellis->shrink;
        return load_in_basis(kv, from, head, part, shrink[__popc(kv.head_dim / CODES_MIN_DIM - 1)]);
    }
};
