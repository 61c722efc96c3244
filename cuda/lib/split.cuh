// Keys in the basis of their KV head and in two groups of head_dim / 2 elements: 4-bit codes of the first
// group, 2-bit codes of the second, and a scale of 8 bits for each (ggml-types/src/turboquant/split.rs).
//
// A code c of two bits is used as the code c + 6 of four bits, whose magnitude is the same element of the
// table: so one look-up serves both groups, with a table for each.
#pragma once

#include "codes.cuh"
#include "rotate.cuh"

// In one kernel file only, since each would have its own.
CONSTANT(SplitParams, split_params, CODES_DIMS);

// A vector is the pieces of the first group, 2 words each as in Codes4, then those of the second group: a
// word each, elements i and 8 + i of the piece in the low and high half of nibble i. The scales are two
// bytes, the first group's first.
struct Codes42 {
    static constexpr uint32_t kVectorBits = 3, kScales = 1;
    static constexpr bool kGroups = true, kSearched = false;
    struct Query {};
    // 4-bit codes.
    using Piece = uint2;

    DEVICE static const SplitParams& params(uint32_t head_dim) {
        return split_params[__popc(head_dim / CODES_MIN_DIM - 1)];
    }

    // Eight 2-bit codes of a word, the low or (odd = 1) the high ones, as 4-bit codes.
    DEVICE static uint32_t four_bits(uint32_t word, uint32_t odd) {
        return (word >> (2 * odd) & 0x33333333u) + 0x66666666u;
    }

    DEVICE static Piece load(const uint8_t* vector, uint32_t n_pieces, uint32_t piece) {
        const uint32_t* words = reinterpret_cast<const uint32_t*>(vector);
        if (piece >= n_pieces / 2) {
            uint32_t word = words[n_pieces / 2 + piece];
            return {four_bits(word, 0), four_bits(word, 1)};
        }
        // Vectors of two pieces are not aligned to 8 bytes.
        if (n_pieces == 2) return {words[0], words[1]};
        return reinterpret_cast<const uint2*>(vector)[piece];
    }

    DEVICE static void pack(uint8_t* vector, uint32_t n_pieces, uint32_t piece, const uint8_t* codes) {
        uint32_t* words = reinterpret_cast<uint32_t*>(vector);
        uint32_t first = 0, second = 0, shift = piece < n_pieces / 2 ? 0 : 2;
        for (uint32_t i = 0; i < 8; i++) {
            first |= uint32_t(codes[i]) << (4 * i);
            second |= uint32_t(codes[8 + i]) << (4 * i + shift);
        }
        if (piece < n_pieces / 2) {
            words[2 * piece] = first;
            words[2 * piece + 1] = second;
        } else {
            words[n_pieces / 2 + piece] = first | second;
        }
    }

    DEVICE static void bytes(const Piece& piece, const uint32_t (&table)[2], uint32_t (&out)[4]) {
        Codes4::bytes(piece, table, out);
    }

    // Scale of a group, times the step size of its table.
    DEVICE static float scale(uint32_t head_dim, uint16_t codes, uint32_t group) {
        uint32_t code = codes >> (8 * group) & 255u;
        const SplitParams& of_dim = params(head_dim);
        // Both are read, each by all lanes at one address of constant memory.
        float biases[2] = {of_dim.groups[0].bias, of_dim.groups[1].bias};
        float bias = group == 0 ? biases[0] : biases[1];
        return code == 0 ? 0.0f : exp2_fast(fmaf(float(code), 1.0f / kScaleSteps, bias));
    }

    // The code of a scale; sets `clamped` if the scale is beyond the largest. A scale below half of the
    // smallest becomes 0.
    DEVICE static uint32_t code_of_scale(
        const SplitParams& params, uint32_t group, float scale, bool& clamped
    ) {
        if (!(scale > 0.0f)) return 0;
        float code = rintf(kScaleSteps * log2f(scale / params.unit)) + params.groups[group].one;
        clamped = clamped || code > 255.0f;
        return code <= 1.0f - kScaleSteps ? 0u : uint32_t(fminf(fmaxf(code, 1.0f), 255.0f));
    }
};

// Keys in two groups, values in 3-bit codes.
struct KeysInGroups {
    using Keys = Codes42;
    using Values = Codes3;

    // The table of a piece of n_pieces.
    DEVICE static void key_table(
        const CodedKvParams& kv, uint32_t piece, uint32_t n_pieces, uint32_t (&to)[2]
    ) {
        const SplitParams& params = Keys::params(kv.head_dim);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t tables[2] = {params.groups[0].table[i], params.groups[1].table[i]};
            to[i] = piece < n_pieces / 2 ? tables[0] : tables[1];
        }
    }

    // Loads a vector and transforms it as the cache requires. All lanes of a warp call it.
    DEVICE static Vector load(const CodedKvParams& kv, const float* from, uint32_t head, Part part) {
        if (part == Part::kValue) return load_rotated(kv, from);
        return load_in_basis(kv, from, head, part, Keys::params(kv.head_dim).shrink);
    }
};
