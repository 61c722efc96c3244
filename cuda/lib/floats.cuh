// Ternary weights with float activations: float products, for programs that do not quantise inputs.
//
// Slower than integer products. Only `logits` and `experts` have such kernels; other stages are finished by
// stage/combine.cu and stage/heads.cu. The scale of an I2_S tensor is part of LinearParams::factor here. Code
// 3, which no quantiser writes, has the value 2, as in integer products.
#pragma once

#include "kernels.cuh"

template <class T>
struct Floats {
    static constexpr bool kInts = false;
    static constexpr int kElems = T::kElems;
    static constexpr int kUnroll = 2;
    static constexpr int kRowsUnroll = 1;
    // lib/input.cuh
    static constexpr uint32_t kBlockQuads = 2;
    using Acc = float;
    using Row = typename T::Row;
    using Chunk = typename T::Chunk;

    DEVICE static void place(uint32_t col, uint32_t& chunk, uint32_t& elem) { T::place(col, chunk, elem); }
    DEVICE static Row row(const LinearParams& w, uint32_t row) { return T::row(w, row); }
    DEVICE static Chunk load(Row row, uint32_t chunk) { return T::load(row, chunk); }
    DEVICE static float scale(const LinearParams& w, uint32_t row) { return T::scale(w, row); }

    DEVICE static uint4 codes_of(const Chunk& chunk) {
        if constexpr (T::kChunkSums) {
            return chunk.codes;
        } else {
            return chunk;
        }
    }

    template <int M>
    DEVICE static void dot(
        Acc (&sums)[M], const Chunk& chunk, const uint8_t* acts, uint32_t at, uint32_t chunks
    ) {
        uint4 codes = codes_of(chunk);
        uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
        float part[M] = {};
#pragma unroll 1
        for (int group = 0; group < 4; group++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t four = T::codes(words[i], group);
                float w[4];
                // 2^23 + code has the code in its lowest bits.
#pragma unroll
                for (int e = 0; e < 4; e++)
                    w[e] = __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7540u + e)) - 8388609.0f;
#pragma unroll
                for (int m = 0; m < M; m++) {
                    uint4 x = load16(acts + m * (chunks * kElems * 4) + ((4 * group + i) * chunks + at) * 16);
                    part[m] = fmaf(w[0], __uint_as_float(x.x), part[m]);
                    part[m] = fmaf(w[1], __uint_as_float(x.y), part[m]);
                    part[m] = fmaf(w[2], __uint_as_float(x.z), part[m]);
                    part[m] = fmaf(w[3], __uint_as_float(x.w), part[m]);
                }
            }
        }
        float scale = 1.0f;
        if constexpr (T::kChunkSums) scale = float_of_half(chunk.scale);
#pragma unroll
        for (int m = 0; m < M; m++) sums[m] = fmaf(scale, part[m], sums[m]);
    }
};

template <class T>
constexpr bool kRowScales<Floats<T>> = kRowScales<T>;

// STERNA_FLOATS_KERNELS(I2S, i2_s) defines logits__i2_s__floats and logits__i2_s__floats__rows, and those of
// experts.
#define STERNA_FLOATS_KERNELS(Type, type)                                  \
    STERNA_EXPERTS_KERNELS(Floats<Type>, type##__floats)                   \
    STERNA_ROW_KERNEL(logits, LogitsParams, Floats<Type>, type##__floats)  \
    STERNA_ROWS_KERNEL(logits, LogitsParams, Floats<Type>, type##__floats)
