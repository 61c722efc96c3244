// The input of a linear layer: rows of a buffer into shared memory, normed and rounded as the layer says.
//
//   n = (x - mean) * factor * weight + bias
//   s = 127 / max(absmax(n), 1e-5), q = round_half_even(n s)
//
// Shared memory, LINEAR_HEADER_BYTES first: scratch of reductions, then RowQuant of each row. Behind it, for
// each row, the activations in the order in which the type T multiplies them: chunk c of T::kElems elements
// lies in planes of 16 bytes, plane p of chunk c at 16 (p chunks + c), so that neighbouring lanes read
// neighbouring 16 bytes. Elements beyond the columns are 0. For types with integer products the elements are
// int8; for all others they are floats, even where the layer rounds to int8: then they are q / s. Behind the
// int8 of a row lies, for types with T::kChunkSums, the sum of each chunk.
//
// With M = 1 the whole block works on the row; with more, each warp takes rows of its own.
#pragma once

#include "reduce.cuh"
#include "step.cuh"

struct RowQuant {
    float scale;
    int32_t sum;
};

// Above it a row counts as broken: every product with it is NaN.
constexpr float kMaxAct = 1e30f;

DEVICE RowQuant* row_quants() {
    return reinterpret_cast<RowQuant*>(shared_memory() + LINEAR_HEADER_BYTES / 2);
}

template <class T>
DEVICE uint32_t act_row_bytes(uint32_t chunks) {
    if constexpr (T::kInts) {
        return chunks * (T::kElems + (T::kChunkSums ? 4 : 0));
    } else {
        return chunks * T::kElems * 4;
    }
}

// Sums of the chunks of a row.
template <class T>
DEVICE const int32_t* chunk_sums(const uint8_t* acts, uint32_t chunks) {
    return reinterpret_cast<const int32_t*>(acts + chunks * T::kElems);
}

// The row's mean and factor as the norm has them.
struct RowNorm {
    float mean, factor;

    DEVICE float of(const NormParams& norm, float x, uint32_t col) const {
        if (norm.kind == NORM_NONE) return x;
        float n = (x - mean) * factor * norm.weight[col];
        return norm.bias ? n + norm.bias[col] : n;
    }
};

template <bool Block>
DEVICE RowNorm row_norm(const InputParams& in, const float* x, uint32_t thread, uint32_t threads) {
    Wide* scratch = reinterpret_cast<Wide*>(shared_memory());
    if (in.norm.kind == NORM_NONE) return {0.0f, 1.0f};
    float len = static_cast<float>(in.cols);
    Wide mean = {0.0f, 0.0f};
    if (in.norm.kind == NORM_LAYER) {
        Wide sum = {0.0f, 0.0f};
        for (uint32_t col = thread; col < in.cols; col += threads) sum = add(sum, Wide{x[col], 0.0f});
        mean = divide(reduce<Block, Sum>(sum, scratch + 8), len);
    }
    Wide squares = {0.0f, 0.0f};
    for (uint32_t col = thread; col < in.cols; col += threads) {
        Wide centred = two_sum(x[col], -mean.hi);
        squares = add_square(squares, centred.hi);
        // Twice the product with what the difference lost; its square is below the last place.
        squares.lo += 2.0f * centred.hi * (centred.lo - mean.lo);
    }
    Wide mean_square = divide(reduce<Block, Sum>(squares, scratch), len);
    return {mean.hi, reciprocal_root(add(mean_square, Wide{in.norm.eps, 0.0f}))};
}

// One row, by the block or by a warp.
template <class T, bool Block>
DEVICE void load_row(const InputParams& in, const float* x, uint32_t chunks, uint8_t* acts, RowQuant* quant) {
    uint32_t thread = Block ? threadIdx.x : threadIdx.x % kWarpSize;
    uint32_t threads = Block ? blockDim.x : kWarpSize;
    RowNorm norm = row_norm<Block>(in, x, thread, threads);
    float scale = 1.0f;
    bool broken = false;
    if (in.int8) {
        // As integers, the bits of magnitudes have their order, with NaN above everything.
        uint32_t largest = 0;
        for (uint32_t col = thread; col < in.cols; col += threads) {
            largest = Max::of(largest, __float_as_uint(norm.of(in.norm, x[col], col)) & 0x7fffffffu);
        }
        largest = reduce<Block, Max>(largest, reinterpret_cast<uint32_t*>(shared_memory()) + 32);
        broken = largest > __float_as_uint(kMaxAct);
        scale = broken ? 0.0f : 127.0f / fmaxf(__uint_as_float(largest), 1e-5f);
    }
    if constexpr (T::kInts) {
        int32_t sum = 0;
        // The columns of these types are whole chunks.
        for (uint32_t col = 4 * thread; col < in.cols; col += 4 * threads) {
            uint4 bits = load16(x + col);
            uint32_t values[4] = {bits.x, bits.y, bits.z, bits.w};
            uint32_t packed = 0;
            for (uint32_t i = 0; i < 4; i++) {
                float n = norm.of(in.norm, __uint_as_float(values[i]), col + i);
                int32_t q = broken ? 0 : static_cast<int32_t>(rintf(n * scale));
                sum += q;
                packed |= (static_cast<uint32_t>(q) & 255u) << (8 * i);
            }
            uint32_t chunk, elem;
            T::place(col, chunk, elem);
            *reinterpret_cast<uint32_t*>(acts + (elem / 16 * chunks + chunk) * 16 + elem % 16) = packed;
        }
        sum = reduce<Block, Sum>(sum, reinterpret_cast<int32_t*>(shared_memory()) + 40);
        if (thread == 0) *quant = {scale, sum};
        if constexpr (T::kChunkSums) {
            // A reduction over the block has a barrier, one over a warp has none that memory waits at.
            if constexpr (!Block) __syncwarp();
            int32_t* sums = const_cast<int32_t*>(chunk_sums<T>(acts, chunks));
            for (uint32_t chunk = thread; chunk < chunks; chunk += threads) {
                int32_t of_chunk = 0;
                for (uint32_t plane = 0; plane < T::kElems / 16; plane++) {
                    uint4 q = load16(acts + (plane * chunks + chunk) * 16);
                    uint32_t quads[4] = {q.x, q.y, q.z, q.w};
                    for (uint32_t i = 0; i < 4; i++)
                        of_chunk = __dp4a(0x01010101, static_cast<int32_t>(quads[i]), of_chunk);
                }
                sums[chunk] = of_chunk;
            }
        }
    } else {
        for (uint32_t col = thread; col < chunks * T::kElems; col += threads) {
            float n = col < in.cols ? norm.of(in.norm, x[col], col) : 0.0f;
            if (in.int8) n = (broken ? 0.0f : rintf(n * scale)) / scale;
            uint32_t chunk, elem;
            T::place(col, chunk, elem);
            *reinterpret_cast<float*>(acts + (elem / 4 * chunks + chunk) * 16 + elem % 4 * 4) = n;
        }
    }
}

// Rows first .. first + n of the step, or of those that asked for logits. Ends with a barrier.
template <class T, int M>
DEVICE void load_rows(
    const StepTables& step, const InputParams& in, uint32_t chunks, uint32_t first, uint32_t n
) {
    uint8_t* acts = shared_memory() + LINEAR_HEADER_BYTES;
    constexpr bool kBlock = M == 1;
    uint32_t warps = blockDim.x / kWarpSize;
    for (uint32_t m = kBlock ? 0 : threadIdx.x / kWarpSize; m < n; m += kBlock ? 1 : warps) {
        uint64_t row = in.of_outputs ? step.outputs[first + m] : first + m;
        load_row<T, kBlock>(in, in.x + row * in.cols, chunks, acts + m * act_row_bytes<T>(chunks),
            row_quants() + m);
    }
    __syncthreads();
}
