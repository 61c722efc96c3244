// Products of quantised weights and one activation row quantised by block: dp4a over int8, exact sums per
// run.
//
//   y = sum over runs of scale * (affine.scale * sum(code q) + affine.offset * sum(q))
//
// A run is the columns of a chunk that share a block of QUANT_COLS columns and a group of weights: 16 columns
// or the whole block. In shared memory the int8 of the row are stored in planes, as for every type
// (lib/input.cuh). They are followed by the RowBlocks of each chunk: one per 16 columns if kHalves, one per
// block otherwise. If a chunk has several, pairs of them fill 16 bytes, in planes like the codes; a single
// one takes 8 bytes. So 32 columns take 48 or 40 bytes.
//
// A weight type has
//
//   affine(chunk, at, kind, group)  as in lib/affine.cuh
//   bytes(chunk, quad, kind)        as in lib/affine.cuh
//   kHalves                         true if a chunk has 16 columns (the first or last) of each of several
//                                   blocks; false if its columns are adjacent
#pragma once

#include "affine.cuh"

// The scale of a block of the activation row, and the sum of its int8 (of 16 of them if kHalves).
struct RowBlock {
    float scale, sum;
};

// True if a chunk has a member `high` with further bits of its codes; only some kinds use it:
// T::has_high(kind).
template <class T, class = void>
constexpr bool kHighBits = false;
template <class T>
constexpr bool kHighBits<T, typename Exists<decltype(T::Chunk::high)>::Type> = kOfKinds<T>;

template <class T>
struct ByBlock : T {
    static constexpr bool kInts = true;
    static constexpr uint32_t kRun = T::kHalves || T::kGroup < QUANT_COLS ? 16 : QUANT_COLS;
    static_assert(
        kRun == QUANT_COLS || T::kHalves || (T::kZeroPoint == 0 && !kOffsets<T>), "sums are of runs"
    );

    // RowBlocks per chunk.
    static constexpr uint32_t kBlockCols = T::kHalves ? 16 : QUANT_COLS;
    static constexpr uint32_t kBlocks = (T::kElems + kBlockCols - 1) / kBlockCols;

    // Offset of RowBlock i of a chunk, in bytes.
    DEVICE static uint32_t block_at(uint32_t chunk, uint32_t i, uint32_t chunks) {
        if constexpr (kBlocks > 1) return (i / 2 * chunks + chunk) * 16 + i % 2 * 8;
        return chunk / (kBlockCols > T::kElems ? 2 : 1) * 8;
    }

    template <uint32_t Quads>
    DEVICE static void load_row(const InputParams& in, const float* x, uint32_t chunks, uint8_t* acts) {
        uint8_t* blocks = acts + chunks * T::kElems;
        quantize_by_block<Quads>(in, x, in.cols, [&](uint32_t col, uint32_t codes, int32_t sum, auto block) {
            if constexpr (!T::kHalves) sum += __shfl_xor_sync(kWarp, sum, 4);
            if (col >= in.cols) return;
            uint32_t chunk, elem;
            T::place(col, chunk, elem);
            *reinterpret_cast<uint32_t*>(acts + (elem / 16 * chunks + chunk) * 16 + elem % 16) = codes;
            if (col % kBlockCols == 0)
                *reinterpret_cast<RowBlock*>(blocks + block_at(chunk, elem / kBlockCols, chunks)) = {
                    block.scale, static_cast<float>(sum)
                };
        });
    }

    // `sub` is `at` modulo 8; it is the same for all chunks of a lane.
    template <class Chunk, class Kind>
    DEVICE static void dot(
        float& sum, const Chunk& chunk, const uint8_t* acts, uint32_t at, uint32_t sub, uint32_t chunks,
        const Kind& kind
    ) {
        if constexpr (kHighBits<T>) {
            if (!T::has_high(kind)) {
                Chunk low = chunk;
                low.high = {};
                return add(sum, low, acts, at, sub, chunks, kind);
            }
        }
        add(sum, chunk, acts, at, sub, chunks, kind);
    }

    template <class Chunk, class Kind>
    DEVICE static void add(
        float& to, const Chunk& chunk, const uint8_t* acts, uint32_t at, uint32_t sub, uint32_t chunks,
        const Kind& kind
    ) {
        RowBlock blocks[kBlocks];
        load_blocks(acts + chunks * T::kElems, at, chunks, blocks);
#pragma unroll
        for (uint32_t group = 0; group < T::kElems / T::kGroup; group++) {
            Affine affine = T::affine(chunk, sub, kind, group);
            float of_group = 0.0f;
#pragma unroll
            for (uint32_t run = group * T::kGroup; run < (group + 1) * T::kGroup; run += kRun) {
                int32_t bits = kSumBits;
#pragma unroll
                for (uint32_t piece = run / 16; piece < (run + kRun) / 16; piece++) {
                    uint4 q = load16(acts + (piece * chunks + at) * 16);
                    uint32_t quads[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) {
                        int32_t codes = static_cast<int32_t>(T::bytes(chunk, 4 * piece + i, kind));
                        bits = __dp4a(codes, static_cast<int32_t>(quads[i]), bits);
                    }
                }
                const RowBlock& block = blocks[run / kBlockCols];
                float sum = sum_of_bits(bits);
                if constexpr (kOffsets<T>) {
                    to = fmaf(block.scale, fmaf(affine.scale, sum, affine.offset * block.sum), to);
                } else {
                    if constexpr (T::kZeroPoint != 0)
                        sum = fmaf(-static_cast<float>(T::kZeroPoint), block.sum, sum);
                    of_group = fmaf(block.scale, sum, of_group);
                }
            }
            if constexpr (!kOffsets<T>) to = fmaf(affine.scale, of_group, to);
        }
    }

    DEVICE static void load_blocks(
        const uint8_t* from, uint32_t at, uint32_t chunks, RowBlock (&to)[kBlocks]
    ) {
        if constexpr (kBlocks == 1) {
            uint2 one = load8(from + block_at(at, 0, chunks));
            to[0] = {__uint_as_float(one.x), __uint_as_float(one.y)};
        } else {
#pragma unroll
            for (uint32_t i = 0; i < kBlocks; i += 2) {
                uint4 two = load16(from + block_at(at, i, chunks));
                to[i] = {__uint_as_float(two.x), __uint_as_float(two.y)};
                to[i + 1] = {__uint_as_float(two.z), __uint_as_float(two.w)};
            }
        }
    }
};

template <class T>
constexpr bool kByBlock<ByBlock<T>> = true;
template <class T>
constexpr bool kOfKinds<ByBlock<T>> = kOfKinds<T>;
