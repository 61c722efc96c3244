// Base of the types whose weights are codes with a scale and an offset per group of columns:
// value = scale * (code - kZeroPoint) + offset. `Type` has
//
//   affine(chunk, at, kind, group)  scale and offset of a group of a chunk, which has index `at` in the row
//   bytes(chunk, quad, kind)        four neighbouring codes of a chunk, as bytes below 128, or signed
//                                   (kSigned)
//
// and optionally a Kind, which all weights of a launch share: it distinguishes types with the same planes.
// Values are rounded once; products and sums are those of floats.
#pragma once

#include "block_codes.cuh"

struct Affine {
    float scale, offset;
};

// Converts four codes below 128 to float and subtracts ZeroPoint: 128 + code has the code in its upper
// mantissa bits.
template <int ZeroPoint = 0>
DEVICE void floats_of_codes(uint32_t bytes, float (&out)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = __uint_as_float(__byte_perm(bytes, 0x43000000u, 0x7044u + (i << 8))) - (128.0f + ZeroPoint);
}

// Four codes below 128, the even ones times one scale and the odd ones times another. Exact for scales of 17
// bits.
DEVICE void floats_of_codes_times(uint32_t bytes, float even, float odd, float (&out)[4]) {
    float less[2] = {-128.0f * even, -128.0f * odd};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float code = __uint_as_float(__byte_perm(bytes, 0x43000000u, 0x7044u + (i << 8)));
        out[i] = fmaf(i % 2 ? odd : even, code, less[i % 2]);
    }
}

// Converts four signed bytes to float: 2^23 + (byte + 128) has the byte in its lowest bits.
DEVICE void floats_of_bytes(uint32_t bytes, float (&out)[4]) {
    bytes ^= 0x80808080u;
#pragma unroll
    for (int i = 0; i < 4; i++)
        out[i] = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7540u + i)) - 8388736.0f;
}

// Bits of quad i (of 8), shifted to `bit` of each byte; bit i of byte e of the word belongs to element e of
// the quad.
DEVICE uint32_t bits_of_quad(uint32_t word, uint32_t i, uint32_t bit) {
    return (i < bit ? word << (bit - i) : word >> (i - bit)) & 0x01010101u << bit;
}

struct AffineWords {
    uint32_t words[2];
    Affine affine;
    DEVICE float scale(int) const { return affine.scale; }
    DEVICE float offset(int) const { return affine.offset; }
};

template <class Type, int ELEMS, int GROUP>
struct AffineCodes {
    static constexpr bool kInts = false;
    static constexpr int kElems = ELEMS, kGroup = GROUP;
    static constexpr int kZeroPoint = 0;
    static constexpr bool kSigned = false;
    // lib/by_block.cuh
    static constexpr bool kHalves = false;
    static constexpr int kRowsUnroll = 1;
    // Unrolled groups of a chunk, and unrolled quads of a group with several rows.
    static constexpr int kGroupsUnroll = ELEMS / GROUP, kRowsQuadsUnroll = GROUP / 4;
    // lib/input.cuh
    static constexpr uint32_t kBlockQuads = 4;
    using Acc = float;

    template <int M, class Chunk, class Kind = NoKind>
    DEVICE static void dot(
        Acc (&sums)[M], const Chunk& chunk, const uint8_t* acts, uint32_t at, uint32_t chunks,
        const Kind& kind = {}
    ) {
#pragma unroll(Type::kGroupsUnroll)
        for (uint32_t group = 0; group < ELEMS / GROUP; group++) {
            Affine affine = Type::affine(chunk, at, kind, group);
            // Sum that the scale multiplies at the end; unused with offsets.
            float part[M] = {};
#pragma unroll(M > 1 ? Type::kRowsQuadsUnroll : GROUP / 4)
            for (uint32_t i = 0; i < GROUP / 4; i++) {
                uint32_t quad = group * (GROUP / 4) + i;
                float w[4];
                if constexpr (Type::kSigned) {
                    floats_of_bytes(Type::bytes(chunk, quad, kind), w);
                } else {
                    floats_of_codes<Type::kZeroPoint>(Type::bytes(chunk, quad, kind), w);
                }
                if constexpr (kOffsets<Type>) {
#pragma unroll
                    for (int e = 0; e < 4; e++) w[e] = fmaf(w[e], affine.scale, affine.offset);
                }
#pragma unroll
                for (int m = 0; m < M; m++) {
                    uint4 x = load16(acts + m * (chunks * ELEMS * 4) + (quad * chunks + at) * 16);
                    float& sum = kOffsets<Type> ? sums[m] : part[m];
                    sum = fmaf(w[0], __uint_as_float(x.x), sum);
                    sum = fmaf(w[1], __uint_as_float(x.y), sum);
                    sum = fmaf(w[2], __uint_as_float(x.z), sum);
                    sum = fmaf(w[3], __uint_as_float(x.w), sum);
                }
            }
            if constexpr (!kOffsets<Type>) {
#pragma unroll
                for (int m = 0; m < M; m++) sums[m] = fmaf(affine.scale, part[m], sums[m]);
            }
        }
    }
};
