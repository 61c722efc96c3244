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
// int8 of a row lies, for types with T::kChunkSums, the sum of each chunk. Of floats there may be a part of
// the chunks, which begins with a block of weights. Where the layer rounds by block, blocks of ROUND_COLS
// columns have a scale each, and their int8 lie as lib/by_block.cuh says; types without codes have floats.
//
// Steps of more rows are normed and rounded so by a kernel of its own, where products are of integers on
// tensor cores (stage/round.cuh). With M = 1 the whole block works on the row; with more, each warp takes
// rows of its own. The row is read once, a part at a time, into registers: one round trip to memory where one
// part has all of it. A block's weights of the norm are on their way to shared memory before it waits for the
// previous kernel; they lie where the activations will.
#pragma once

#include "quad.cuh"
#include "reduce.cuh"
#include "step.cuh"

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

// Whether types of files share kernels and differ in a T::Kind, which T::kind(w) reads of a weight and every
// weight of a launch has (lib/lines.cuh); and whether values have offsets, which tensor cores multiply with
// sums of activations.
template <class T>
constexpr bool kOfKinds = false;
struct NoKind {};
template <class T>
constexpr bool kOffsets = false;
// Whether products are of integers that are rounded by block (lib/by_block.cuh).
template <class T>
constexpr bool kByBlock = false;
// Whether a row of weights has a scale, which T::scale(w, row) reads and its products want at the end.
template <class T>
constexpr bool kRowScales = false;
// Sets of rows of weights that a warp has at a time on tensor cores; fewer where registers are short.
template <class T>
constexpr int kMmaSets = 2;

template <class>
struct Exists {
    using Type = void;
};

// Whether a type has codes for products of integers (block_codes.cuh, by_block.cuh). Rows that are rounded by
// block go there, so its other kernels need not round so.
template <class T, class = void>
constexpr bool kCodes = false;
template <class T>
constexpr bool kCodes<T, typename Exists<typename T::Codes>::Type> = true;

// What rounds the columns of a block: q = round_half_even(x by), which stands for q scale.
struct BlockRounding {
    float scale, by;

    // By the bits of the block's largest magnitude. One that is broken makes all of it NaN.
    DEVICE static BlockRounding of(uint32_t largest) {
        if (largest >= 0x7f800000u) return {__uint_as_float(0x7fc00000u), 0.0f};
        if (largest < ROUND_NOTHING_BITS) return {0.0f, 0.0f};
        float absmax = __uint_as_float(largest);
        return {absmax / 127.0f, 127.0f / absmax};
    }
    // Of neighbouring threads' shares of a block, `kThreads` of them.
    template <uint32_t kThreads>
    DEVICE static BlockRounding of_threads(uint32_t largest) {
#pragma unroll
        for (uint32_t mask = 1; mask < kThreads; mask *= 2)
            largest = Max::of(largest, __shfl_xor_sync(kWarp, largest, mask));
        return of(largest);
    }
    // Four codes, as bytes: 1.5 x 2^23 + q has q in its low byte. Of a block that is broken they are any.
    DEVICE uint32_t codes(const float (&x)[4]) const {
        uint32_t bits[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) bits[i] = __float_as_uint(x[i] * by + 12582912.0f);
        uint32_t first = __byte_perm(bits[0], bits[1], 0x0040), last = __byte_perm(bits[2], bits[3], 0x0040);
        return __byte_perm(first, last, 0x5410);
    }
    DEVICE float rounded(float x) const { return by > 0.0f ? rintf(x * by) * scale : scale; }
};

// The row's mean and factor as the norm has them.
struct RowNorm {
    float mean, factor;

    DEVICE float of(const NormParams& norm, float x, uint32_t col) const {
        if (norm.kind == NORM_NONE) return x;
        float n = (x - mean) * factor * norm.weight[col];
        return norm.bias ? n + norm.bias[col] : n;
    }
};

// A part of a row in the registers of a block, or of a warp: neighbouring threads have neighbouring quads of
// columns, Quads each. Elements beyond the row are 0. Rows of integer products are Whole quads.
template <bool Block, bool Whole, uint32_t Quads>
struct RowPart {
    static constexpr uint32_t kThreads = Block ? LINEAR_THREADS : kWarpSize;
    static constexpr uint32_t kCols = 4 * Quads * kThreads;

    float x[Quads][4];

    DEVICE static uint32_t parts(uint32_t cols) { return (cols + kCols - 1) / kCols; }

    // Calls take(quad, column) for this thread's quads of a part, of which some thread's begin before column
    // `cols`.
    template <class Take>
    DEVICE static void each(uint32_t part, uint32_t cols, Take take) {
        uint32_t first = part * kCols;
#pragma unroll
        for (uint32_t quad = 0; quad < Quads; quad++) {
            // The same for all threads.
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

    // Norms what has been loaded, with the norm's weights at `weight`.
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

    // The same with weights that have been loaded, of a row that is one part.
    DEVICE void apply(const RowNorm& row, const NormParams& norm, const RowPart& weight, uint32_t cols) {
        if (norm.kind == NORM_NONE) return;
        each(0, cols, [&](uint32_t quad, uint32_t col) {
            apply(row, norm, weight.x[quad], cols, quad, col);
        });
    }

    // The same of a quad.
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
            BlockRounding block = BlockRounding::of_threads<ROUND_COLS / 4>(largest_of(quad));
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) x[quad][i] = block.rounded(x[quad][i]);
        }
    }

    // The bits of the largest magnitude: as integers they have the order of floats, with NaN above all.
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

// Quads that threads hold where warps work on rows: with several rows, on tensor cores, and for types with
// float products there are fewer registers to spare. And of a head. Where a block works on a row, they hold
// T::kBlockQuads.
template <class T>
constexpr uint32_t kRowsQuads = T::kInts ? 1 : 2;
constexpr uint32_t kMmaQuads = 1, kHeadQuads = 2;
static_assert(RowPart<true, true, 7>::kCols == NORM_SHARED_COLS, "the host asks for less");

// The mean and the factor of a row. Leaves the first part of the row loaded, as it is.
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
    // Four sums, which do not wait for each other.
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
                // Twice the product with what the difference lost; its square is below the last place.
                squares[i].lo += 2.0f * centred.hi * (centred.lo - mean.lo);
            }
        });
    }
    if (parts > 1) held.load(row, in.cols, 0);
    Wide all = add_alike(add_alike(squares[0], squares[1]), add_alike(squares[2], squares[3]));
    Wide mean_square = divide(reduce<Block, SumAlike>(all, scratch), len, one_over);
    return {mean.hi, reciprocal_root(add(mean_square, Wide{in.norm.eps, 0.0f}))};
}

// Whether the norm's weights come to shared memory, for a block that takes a row at a time: where it has the
// row in one part, because activations take their place.
template <uint32_t Quads>
DEVICE bool shares_norm(const InputParams& in) {
    return in.norm.kind != NORM_NONE && in.cols % 4 == 0 && in.cols <= RowPart<true, true, Quads>::kCols;
}

// Starts to bring them; each thread brings what it will read.
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

// A row, normed and rounded by block by a block of threads that has called prefetch_norm: put(column, codes,
// sum, rounding) takes four columns below `cols`, which may lie beyond the row, and the sum of the 16 that
// they are of, from each thread of a warp at a time. What it writes may lie where the norm's weights were.
template <uint32_t Quads, class Put>
DEVICE void round_by_block(const InputParams& in, const float* x, uint32_t cols, Put put) {
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
            BlockRounding block = BlockRounding::of_threads<ROUND_COLS / 4>(held.largest_of(quad));
            uint32_t codes = block.codes(held.x[quad]);
            int32_t sum = __dp4a(0x01010101, static_cast<int32_t>(codes), 0);
            sum += __shfl_xor_sync(kWarp, sum, 1);
            sum += __shfl_xor_sync(kWarp, sum, 2);
            put(col, codes, sum, block);
        });
    }
}

// Chunks begin .. end of one row, by the block or by a warp; all of them where they are integers. There is
// room for `chunks`.
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
    for (uint32_t part = 0; part < (T::kInts || in.rounding == ROUND_ROWS ? parts : 1); part++) {
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
    if (in.rounding == ROUND_ROWS) {
        largest = reduce<Block, Max>(largest, reinterpret_cast<uint32_t*>(shared_memory()) + 32);
        broken = largest > __float_as_uint(kMaxAct);
        scale = broken ? 0.0f : 127.0f / fmaxf(__uint_as_float(largest), 1e-5f);
    } else if (shared_norm) {
        // Activations come to where other threads may still read the norm.
        __syncthreads();
    }
    int32_t sum = 0;
    uint32_t cols = T::kInts ? in.cols : end * T::kElems, from = T::kInts ? 0 : begin * T::kElems;
    for (uint32_t part = from / held.kCols; part < held.parts(cols); part++) {
        // There is no norm in shared memory if there are several parts.
        if (parts > 1 || part > 0) {
            held.load(x, in.cols, part);
            held.apply(norm, in.norm, in.norm.weight, in.cols, part);
        }
        if constexpr (!T::kInts && !kCodes<T>) {
            if (in.rounding == ROUND_BLOCKS) held.round_by_block();
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
                    a[i] = in.rounding == ROUND_ROWS ? (broken ? 0.0f : rintf(n[i] * scale)) / scale : n[i];
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

// Chunks begin .. end, of room for `chunks`, of rows first .. first + n of the step, or of those that asked
// for logits. Ends with a barrier. A block that takes a row at a time has called prefetch_norm.
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
