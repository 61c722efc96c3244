// Input of a linear layer: rows of a buffer, normalised and quantised into shared memory.
//
//   n = (x - mean) * factor * weight + bias
//   s = 127 / max(absmax(n), 1e-5), q = round_half_even(n s)
//
// Shared memory: LINEAR_HEADER_BYTES come first, with scratch for reductions, then one RowQuant per row. The
// activations of each row follow, in the order in which type T multiplies them: a chunk of T::kElems elements
// is spread over planes of 16 bytes, plane p of chunk c at offset 16 (p chunks + c), so that neighbouring
// lanes read neighbouring 16 bytes. Elements past the last column are 0. The elements are int8 for types with
// integer products (kInts), otherwise floats, even if the layer rounds to int8: then they are q / s. For
// types with T::kChunkSums the int8 of a row are followed by the sum of each chunk. Floats may be loaded in
// parts, each starting at a block of weights. If the layer rounds by block, each QUANT_COLS columns have one
// scale, in the layout of lib/by_block.cuh; types without codes use floats.
//
// For larger batches with integer products on tensor cores, a separate kernel does this (stage/quantize.cuh).
// With M = 1 the whole block works on one row; otherwise each warp works on its own rows. A row is read into
// registers, in parts if it is long; with one part it is read from memory only once. A block starts to copy
// the norm weights to shared memory before it waits for the previous kernel; the activations overwrite them
// later.
#pragma once

#include "quad.cuh"
#include "reduce.cuh"
#include "step.cuh"

// Rows with a larger magnitude are invalid: every product with them is NaN.
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

template <class T>
DEVICE const int32_t* chunk_sums(const uint8_t* acts, uint32_t chunks) {
    return reinterpret_cast<const int32_t*>(acts + chunks * T::kElems);
}

// kOfKinds: several file types share kernels and differ in a T::Kind, read from a weight by T::kind(w) and
// equal for all weights of a launch (lib/affine.cuh). kOffsets: values have offsets, which tensor cores
// multiply by sums of activations.
template <class T>
constexpr bool kOfKinds = false;
struct NoKind {};
template <class T>
constexpr bool kOffsets = false;
// True if products are of int8 quantised by block (lib/by_block.cuh).
template <class T>
constexpr bool kByBlock = false;
// True if each row of weights has a scale, read by T::scale(w, row) and multiplied into the finished product.
template <class T>
constexpr bool kRowScales = false;
// Sets of weight rows per warp at a time on tensor cores; fewer for types that need more registers.
template <class T>
constexpr int kMmaSets = 2;

template <class>
struct Exists {
    using Type = void;
};

// True if a type has codes for integer products (block_codes.cuh, by_block.cuh). Inputs quantised by block
// are always multiplied that way, so the type's other kernels need not support them.
template <class T, class = void>
constexpr bool kCodes = false;
template <class T>
constexpr bool kCodes<T, typename Exists<typename T::Codes>::Type> = true;

// Quantisation of a block of columns: q = round_half_even(x * by), and x is about q * scale.
struct BlockRounding {
    float scale, by;

    // From the bits of the block's largest magnitude. An invalid block becomes NaN.
    DEVICE static BlockRounding of(uint32_t largest) {
        if (largest >= 0x7f800000u) return {__uint_as_float(0x7fc00000u), 0.0f};
        if (largest < QUANT_ZERO_BITS) return {0.0f, 0.0f};
        float absmax = __uint_as_float(largest);
        return {absmax / 127.0f, 127.0f / absmax};
    }
    // For a block shared by kThreads neighbouring threads.
    template <uint32_t kThreads>
    DEVICE static BlockRounding of_threads(uint32_t largest) {
#pragma unroll
        for (uint32_t mask = 1; mask < kThreads; mask *= 2)
            largest = Max::of(largest, __shfl_xor_sync(kWarp, largest, mask));
        return of(largest);
    }
    // Four codes as bytes: 1.5 x 2^23 + q has q in its low byte. For an invalid block they are arbitrary.
    DEVICE uint32_t codes(const float (&x)[4]) const {
        uint32_t bits[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) bits[i] = __float_as_uint(x[i] * by + 12582912.0f);
        uint32_t first = __byte_perm(bits[0], bits[1], 0x0040), last = __byte_perm(bits[2], bits[3], 0x0040);
        return __byte_perm(first, last, 0x5410);
    }
    DEVICE float rounded(float x) const { return by > 0.0f ? rintf(x * by) * scale : scale; }
};

// Mean and factor of a row's norm.
struct RowNorm {
    float mean, factor;

    DEVICE float of(const NormParams& norm, float x, uint32_t col) const {
        if (norm.kind == NORM_NONE) return x;
        float n = (x - mean) * factor * norm.weight[col];
        return norm.bias ? n + norm.bias[col] : n;
    }
};

// A part of a row in the registers of a block or a warp: neighbouring threads hold neighbouring quads (4
// columns), Quads each. Elements past the end are 0. Whole: the number of columns is a multiple of 4, as for
// integer products.
template <bool Block, bool Whole, uint32_t Quads>
struct RowPart {
    static constexpr uint32_t kThreads = Block ? LINEAR_THREADS : kWarpSize;
    static constexpr uint32_t kCols = 4 * Quads * kThreads;

    float x[Quads][4];

    DEVICE static uint32_t parts(uint32_t cols) { return (cols + kCols - 1) / kCols; }

    // Calls take(quad, column) for this thread's quads of a part; stops where a quad starts at or after
    // `cols` for all threads.
    template <class Take>
    DEVICE static void each(uint32_t part, uint32_t cols, Take take) {
        uint32_t first = part * kCols;
#pragma unroll
        for (uint32_t quad = 0; quad < Quads; quad++) {
            // Uniform across threads.
            if (first + 4 * quad * kThreads >= cols) break;
            take(quad, first + 4 * (quad * kThreads + (Block ? threadIdx.x : threadIdx.x % kWarpSize)));
        }
    }

    DEVICE void load(const float* row, uint32_t cols, uint32_t part) {
#pragma unroll
        for (uint32_t i = 0; i < 4 * Quads; i++) x[i / 4][i % 4] = 0.0f;
        each(part, cols, [&](uint32_t quad, uint32_t col) {
            if (col < cols) load_quad<Whole>(row, col, cols, x[quad]);
        });
    }

    // Normalises the loaded part, with the norm weights at `weight`.
    DEVICE void apply(
        const RowNorm& row, const NormParams& norm, const float* weight, uint32_t cols, uint32_t part
    ) {
        if (norm.kind == NORM_NONE) return;
        each(part, cols, [&](uint32_t quad, uint32_t col) {
            float w[4] = {};
            if (col < cols) load_quad<Whole>(weight, col, cols, w);
            apply(row, norm, w, cols, quad, col);
        });
    }

    // The same with loaded weights, for a row that is one part.
    DEVICE void apply(const RowNorm& row, const NormParams& norm, const RowPart& weight, uint32_t cols) {
        if (norm.kind == NORM_NONE) return;
        each(0, cols, [&](uint32_t quad, uint32_t col) {
            apply(row, norm, weight.x[quad], cols, quad, col);
        });
    }

    // The same for one quad.
    DEVICE void apply(
        const RowNorm& row, const NormParams& norm, const float (&w)[4], uint32_t cols, uint32_t quad,
        uint32_t col
    ) {
        float b[4] = {};
        if (col < cols && norm.bias) load_quad<Whole>(norm.bias, col, cols, b);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            float n = (x[quad][i] - row.mean) * row.factor * w[i];
            x[quad][i] = norm.bias ? n + b[i] : n;
        }
    }

    // All threads of a warp call it.
    DEVICE void round_by_block() {
#pragma unroll
        for (uint32_t quad = 0; quad < Quads; quad++) {
            BlockRounding block = BlockRounding::of_threads<QUANT_COLS / 4>(largest_of(quad));
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) x[quad][i] = block.rounded(x[quad][i]);
        }
    }

    // Bits of the largest magnitude: as integers they sort like floats, with NaN above all.
    DEVICE uint32_t largest(uint32_t so_far) const {
#pragma unroll
        for (uint32_t quad = 0; quad < Quads; quad++) so_far = Max::of(so_far, largest_of(quad));
        return so_far;
    }
    DEVICE uint32_t largest_of(uint32_t quad) const {
        uint32_t largest = 0;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            largest = Max::of(largest, __float_as_uint(x[quad][i]) & 0x7fffffffu);
        return largest;
    }
};

// Quads per thread when warps work on rows (several rows, tensor cores, or float products, which need more
// registers), and for one head. When a block works on a row, they are T::kBlockQuads.
template <class T>
constexpr uint32_t kRowsQuads = T::kInts ? 1 : 2;
constexpr uint32_t kMmaQuads = 1;
static_assert(RowPart<true, true, 7>::kCols == NORM_SHARED_COLS, "the host asks for less");

// Mean and factor of a row. Leaves the first part of the row loaded, unnormalised.
template <bool Block, bool Whole, uint32_t Quads>
DEVICE RowNorm row_norm(const InputParams& in, const float* row, RowPart<Block, Whole, Quads>& held) {
    held.load(row, in.cols, 0);
    if (in.norm.kind == NORM_NONE) return {0.0f, 1.0f};
    Wide* scratch = reinterpret_cast<Wide*>(shared_memory());
    uint32_t parts = held.parts(in.cols);
    float len = static_cast<float>(in.cols), one_over = 1.0f / len;
    Wide mean = {0.0f, 0.0f};
    if (in.norm.kind == NORM_LAYER) {
        Wide sum = {0.0f, 0.0f};
        for (uint32_t part = 0; part < parts; part++) {
            if (part > 0) held.load(row, in.cols, part);
            held.each(part, in.cols, [&](uint32_t quad, uint32_t) {
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) sum = add(sum, Wide{held.x[quad][i], 0.0f});
            });
        }
        mean = divide(reduce<Block, Sum>(sum, scratch + 8), len, one_over);
        if (parts > 1) held.load(row, in.cols, 0);
    }
    // Four independent accumulators.
    Wide squares[4] = {};
    for (uint32_t part = 0; part < parts; part++) {
        if (part > 0) held.load(row, in.cols, part);
        if (in.norm.kind == NORM_RMS) {
            held.each(part, in.cols, [&](uint32_t quad, uint32_t) {
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) squares[i] = add_square(squares[i], held.x[quad][i]);
            });
            continue;
        }
        held.each(part, in.cols, [&](uint32_t quad, uint32_t col) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                if (col + i >= in.cols) continue;
                Wide centred = two_sum(held.x[quad][i], -mean.hi);
                squares[i] = add_square(squares[i], centred.hi);
                // Adds twice the product with the rounding error; the square of the error is negligible.
                squares[i].lo += 2.0f * centred.hi * (centred.lo - mean.lo);
            }
        });
    }
    if (parts > 1) held.load(row, in.cols, 0);
    Wide all = add_alike(add_alike(squares[0], squares[1]), add_alike(squares[2], squares[3]));
    Wide mean_square = divide(reduce<Block, SumAlike>(all, scratch), len, one_over);
    return {mean.hi, reciprocal_root(add(mean_square, Wide{in.norm.eps, 0.0f}))};
}

// True if the norm weights are prefetched into shared memory, for a block that works on one row: only if the
// row is one part, because the activations overwrite them.
template <uint32_t Quads>
DEVICE bool shares_norm(const InputParams& in) {
    return in.norm.kind != NORM_NONE && in.cols % 4 == 0 && in.cols <= RowPart<true, true, Quads>::kCols;
}

// Starts the copies; each thread copies what it will read.
template <uint32_t Quads>
DEVICE void prefetch_norm(const InputParams& in) {
    if (!shares_norm<Quads>(in)) return;
    float* to = reinterpret_cast<float*>(shared_memory() + LINEAR_HEADER_BYTES);
    const float* from = in.norm.weight;
    RowPart<true, true, Quads>::each(0, in.cols, [&](uint32_t, uint32_t col) {
        if (col < in.cols) cp_async16(to + col, from + col);
    });
    cp_async_commit();
}

// Normalises a row and quantises it by block, in a block of threads that has called prefetch_norm. All
// threads of a warp call put(column, codes, sum, rounding) together, for four columns below `cols` (which may
// be past the row's end) and with the sum of the 16 columns they belong to. put may overwrite the norm
// weights.
template <uint32_t Quads, class Put>
DEVICE void quantize_by_block(const InputParams& in, const float* x, uint32_t cols, Put put) {
    RowPart<true, true, Quads> held;
    RowNorm norm = row_norm(in, x, held);
    bool shared_norm = shares_norm<Quads>(in);
    for (uint32_t part = 0; part < held.parts(cols); part++) {
        if (part > 0) held.load(x, in.cols, part);
        if (shared_norm) {
            cp_async_wait<0>();
            const uint8_t* weight = shared_memory() + LINEAR_HEADER_BYTES;
            held.apply(norm, in.norm, reinterpret_cast<const float*>(weight), in.cols, part);
            __syncthreads();
        } else {
            held.apply(norm, in.norm, in.norm.weight, in.cols, part);
        }
        held.each(part, cols, [&](uint32_t quad, uint32_t col) {
            BlockRounding block = BlockRounding::of_threads<QUANT_COLS / 4>(held.largest_of(quad));
            uint32_t codes = block.codes(held.x[quad]);
            int32_t sum = __dp4a(0x01010101, static_cast<int32_t>(codes), 0);
            sum += __shfl_xor_sync(kWarp, sum, 1);
            sum += __shfl_xor_sync(kWarp, sum, 2);
            put(col, codes, sum, block);
        });
    }
}

// Loads chunks begin .. end of one row (all of them for integers), by the block or by one warp. There is room
// for `chunks`.
template <class T, bool Block, uint32_t Quads>
DEVICE void load_row(
    const InputParams& in, const float* x, uint32_t begin, uint32_t end, uint32_t chunks, uint8_t* acts,
    RowQuant* quant
) {
    bool first_thread = (Block ? threadIdx.x : threadIdx.x % kWarpSize) == 0;
    if (Block && first_thread) quant->sum = 0;
    RowPart<Block, T::kInts, Quads> held;
    RowNorm norm = row_norm(in, x, held);
    uint32_t parts = held.parts(in.cols);
    bool shared_norm = Block && shares_norm<Quads>(in);
    uint32_t largest = 0;
    for (uint32_t part = 0; part < (T::kInts || in.rounding == QUANT_ROWS ? parts : 1); part++) {
        if (part > 0) held.load(x, in.cols, part);
        if (shared_norm) {
            cp_async_wait<0>();
            const uint8_t* weight = shared_memory() + LINEAR_HEADER_BYTES;
            held.apply(norm, in.norm, reinterpret_cast<const float*>(weight), in.cols, part);
        } else {
            held.apply(norm, in.norm, in.norm.weight, in.cols, part);
        }
        largest = held.largest(largest);
    }
    float scale = 1.0f;
    bool broken = false;
    if (in.rounding == QUANT_ROWS) {
        largest = reduce<Block, Max>(largest, reinterpret_cast<uint32_t*>(shared_memory()) + 32);
        broken = largest > __float_as_uint(kMaxAct);
        scale = broken ? 0.0f : 127.0f / fmaxf(__uint_as_float(largest), 1e-5f);
    } else if (shared_norm) {
        // The activations overwrite norm weights that other threads may still be reading.
        __syncthreads();
    }
    int32_t sum = 0;
    uint32_t cols = T::kInts ? in.cols : end * T::kElems, from = T::kInts ? 0 : begin * T::kElems;
    for (uint32_t part = from / held.kCols; part < held.parts(cols); part++) {
        // A row of several parts has no norm weights in shared memory.
        if (parts > 1 || part > 0) {
            held.load(x, in.cols, part);
            held.apply(norm, in.norm, in.norm.weight, in.cols, part);
        }
        if constexpr (!T::kInts && !kCodes<T>) {
            if (in.rounding == QUANT_BLOCKS) held.round_by_block();
        }
        held.each(part, cols, [&](uint32_t quad, uint32_t col) {
            if (col < from || col >= cols) return;
            uint32_t chunk, elem;
            T::place(col, chunk, elem);
            chunk -= T::kInts ? 0 : begin;
            const float(&n)[4] = held.x[quad];
            if constexpr (T::kInts) {
                uint32_t packed = 0;
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    int32_t q = broken ? 0 : static_cast<int32_t>(rintf(n[i] * scale));
                    sum += q;
                    packed |= (static_cast<uint32_t>(q) & 255u) << (8 * i);
                }
                *reinterpret_cast<uint32_t*>(acts + (elem / 16 * chunks + chunk) * 16 + elem % 16) = packed;
            } else {
                float a[4];
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    a[i] = in.rounding == QUANT_ROWS ? (broken ? 0.0f : rintf(n[i] * scale)) / scale : n[i];
                float4* to = reinterpret_cast<float4*>(acts + (elem / 4 * chunks + chunk) * 16);
                *to = make_float4(a[0], a[1], a[2], a[3]);
            }
        });
    }
    if constexpr (T::kInts) {
        sum = reduce_warp<Sum>(sum);
        if constexpr (Block) {
            if (threadIdx.x % kWarpSize == 0) atomicAdd(&quant->sum, sum);
            if (first_thread) quant->scale = scale;
        } else if (first_thread) {
            *quant = {scale, sum};
        }
        if constexpr (T::kChunkSums) {
            if constexpr (Block) {
                __syncthreads();
            } else {
                __syncwarp();
            }
            uint32_t thread = Block ? threadIdx.x : threadIdx.x % kWarpSize;
            int32_t* sums = const_cast<int32_t*>(chunk_sums<T>(acts, chunks));
#pragma unroll 1
            for (uint32_t chunk = thread; chunk < chunks; chunk += held.kThreads) {
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
    }
}

// Loads chunks begin .. end (with room for `chunks`) of batch rows first .. first + n, or of rows that need
// logits. Ends with a barrier. A block that works on one row at a time has called prefetch_norm.
template <class T, int M, uint32_t Quads>
DEVICE void load_rows(
    const StepTables& step, const InputParams& in, uint32_t begin, uint32_t end, uint32_t chunks,
    uint32_t first, uint32_t n
) {
    uint8_t* acts = shared_memory() + LINEAR_HEADER_BYTES;
    constexpr bool kBlock = M == 1;
    uint32_t warps = blockDim.x / kWarpSize;
    for (uint32_t m = kBlock ? 0 : threadIdx.x / kWarpSize; m < n; m += kBlock ? 1 : warps) {
        uint64_t row = in.of_outputs ? step.outputs[first + m] : first + m;
        const float* x = in.x + row * in.cols;
        if constexpr (kByBlock<T>) {
            T::template load_row<Quads>(in, x, chunks, acts);
        } else {
            uint8_t* to = acts + m * act_row_bytes<T>(chunks);
            load_row<T, kBlock, Quads>(in, x, begin, end, chunks, to, row_quants() + m);
        }
    }
    __syncthreads();
}
