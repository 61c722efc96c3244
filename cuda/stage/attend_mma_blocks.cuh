// Attend over blocks for many rows of one sequence, on tensor cores: attend_mma.cuh with the caches of
// attend_blocks.cuh.
//
// A span of blocks is unpacked once for all query vectors of a block of threads, keys to bytes and values to
// f16: registers hold the next span until it is unpacked to shared memory. An f16 side of the cache is
// copied.
//
// Scores of blocks are byte products with queries in 255 steps per piece of 16 elements, added as floats, as
// in attend_blocks.cuh. Values are integers, which f16 represents exactly, and weights are multiplied by the
// scales of their blocks: separately for each BLOCK_ELEMS elements, relative to the largest product with a
// vector's largest scale. So prefill and decode use the same values.
//
// Reads head_dim elements of keys and of values per position, KV head and tile, and their scales. Queries are
// rotated beforehand if keys are (append_blocks.cuh); the output is rotated back here if values are. Requires
// head_dim = D, `arrived` = 0.
#pragma once

#include "../lib/blocks.cuh"
#include "attend_mma.cuh"

// Pages of one sequence and KV head, up to position `end`.
template <int D>
struct BlocksSource {
    using Shape = TileShape<D>;

    static constexpr bool kSteps = true, kMayBreak = true;
    static constexpr int kStepElems = BLOCK_ELEMS;
    static constexpr uint32_t kSpan = Shape::kSpan, kTiles = Shape::kTiles;
    static constexpr uint32_t kPieces = D / CODES_PIECE, kBlocks = D / BLOCK_ELEMS;
    // Threads per block, and pieces of a span per thread.
    static constexpr uint32_t kThreads = Shape::kWarps * kWarpSize;
    static constexpr uint32_t kOwn = (kSpan * kPieces + kThreads - 1) / kThreads;
    // Pitch of a vector of bytes, in f16 units.
    static constexpr uint32_t kBytesPitch = kPitch<D / 2>;

    struct Shared : AttendShared<D> {
        // Query vectors in 255 steps; `keys` has the same layout.
        uint16_t bytes[Shape::kVectors * kBytesPitch];
        // Step size per piece.
        float query_steps[Shape::kVectors][kPieces];
        // Scales of the blocks of the span's keys and values, and exponents of each value's largest scale.
        float key_scales[kSpan][kBlocks], scales[kSpan][kBlocks], exponents[kSpan];
    };

    const AttendBlocksMmaParams& p;
    uint32_t seq, end;
    // The thread's share of the span being loaded, of keys and of values.
    BlockPiece pieces[2][kOwn];

    DEVICE BlocksSource(const AttendBlocksMmaParams& p, const StepRow& row, uint32_t end)
        : p(p), seq(row.seq), end(end) {}

    DEVICE void load_queries(Shared& shared, const TileTask& task) const {
        uint32_t lane = threadIdx.x % kWarpSize;
        ::load_queries<D>(p, shared, task, [&](
            uint32_t i, const auto& vector, uint32_t
        ) {
            uint8_t* to = reinterpret_cast<uint8_t*>(shared.bytes + i * kBytesPitch);
#pragma unroll
            for (uint32_t j = 0; j < kBlocks; j++) {
                // As integers, the bits of magnitudes sort like floats, with NaN above everything, so NaN is
                // kept.
                uint32_t largest =
                    reduce_lanes<Max>(__float_as_uint(vector[j]) & 0x7fffffffu, CODES_PIECE);
                float most = __uint_as_float(largest),
                    to_bytes = largest > 0 && largest < 0x7f800000u ? 127.0f / most : 0.0f;
                to[lane + kWarpSize * j] =
                    to_bytes > 0.0f ? uint8_t(int32_t(rintf(vector[j] * to_bytes))) : uint8_t(0);
                if (lane % CODES_PIECE == 0)
                    shared.query_steps[i][2 * j + lane / CODES_PIECE] = most / 127.0f;
            }
        });
    }

    DEVICE BlockPage page(uint32_t part, uint32_t pos) const {
        return BlockPage(p.kv, page_of(p.step, seq, pos), part, blockIdx.x / p.head_tiles);
    }
    DEVICE const uint16_t* value(uint32_t pos) const {
        return reinterpret_cast<const uint16_t*>(page(1, pos).vector(pos % PAGE_POSITIONS));
    }

    DEVICE void start(Shared& shared, uint32_t part, uint32_t first) {
        if (first < end) {
            BlockPage from = page(part, first);
            uint32_t place = first % PAGE_POSITIONS, n = end - first;
            if (from.form == BLOCKS_HALVES) {
                const uint16_t* vectors = reinterpret_cast<const uint16_t*>(from.vector(place));
                start_copy<D>(vectors, D, n, part == 0 ? shared.keys : shared.values);
            } else {
#pragma unroll
                for (uint32_t i = 0; i < kOwn; i++) {
                    uint32_t at = threadIdx.x + i * kThreads, pos = at / kPieces;
                    // Positions past the end are zeros.
                    pieces[part][i] = {};
                    if (pos < kSpan && pos < n) pieces[part][i].load(from, place + pos, at % kPieces);
                }
            }
        }
        cp_async_commit();
    }

    DEVICE void begin_span(Shared&, uint32_t, bool) const {}
    DEVICE void arrive(Shared& shared, uint32_t part) {
        uint32_t form = p.kv.forms[part];
        if (form == BLOCKS_HALVES) {
            if (part == 0) return;
            uint32_t thread = recomputed(threadIdx.x);
            for (uint32_t at = thread; at < kSpan * kBlocks; at += kThreads)
                shared.scales[at / kBlocks][at % kBlocks] = 1.0f;
            if (thread < kSpan) shared.exponents[thread] = 0.0f;
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < kOwn; i++) {
            uint32_t at = threadIdx.x + i * kThreads, pos = at / kPieces, piece = at % kPieces,
                elem = piece * CODES_PIECE;
            const BlockPiece& own = pieces[part][i];
            float scale = float_of_half(own.scale);
            if (part == 1) {
                // The pieces of a value are in neighbouring lanes of one warp.
                uint32_t largest = reduce_lanes<Max>(__float_as_uint(scale) & 0x7fffffffu, kPieces);
                if (piece == 0 && pos < kSpan)
                    shared.exponents[pos] = exponent_of(__uint_as_float(largest));
            }
            if (pos >= kSpan) continue;
            if (piece % 2 == 0) (part == 0 ? shared.key_scales : shared.scales)[pos][piece / 2] = scale;
            if (part == 0) {
                uint32_t words[4];
                own.bytes(form, words);
#pragma unroll
                for (uint32_t w = 0; w < 4; w++) {
                    // Subtracts 8 per byte, without borrows between bytes.
                    if (form == BLOCKS_Q4_0)
                        words[w] = ((words[w] | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
                }
                uint4* to = reinterpret_cast<uint4*>(shared.keys + pos * kBytesPitch + elem / 2);
                *to = make_uint4(words[0], words[1], words[2], words[3]);
            } else {
                float numbers[CODES_PIECE];
                own.floats(form, numbers);
                uint32_t words[CODES_PIECE / 2];
#pragma unroll
                for (uint32_t w = 0; w < CODES_PIECE / 2; w++)
                    words[w] = half2_bits(numbers[2 * w], numbers[2 * w + 1]);
                uint4* to = reinterpret_cast<uint4*>(shared.values + pos * kPitch<D> + elem);
                to[0] = make_uint4(words[0], words[1], words[2], words[3]);
                to[1] = make_uint4(words[4], words[5], words[6], words[7]);
            }
        }
    }

    template <class Sums>
    DEVICE void products(const Shared& shared, const WarpTask<D>& warp, Sums& sums) const {
        if (p.kv.forms[0] == BLOCKS_HALVES) {
            products_of_halves<D>(shared, warp, sums);
            return;
        }
        uint32_t queries = warp.first_vector * kBytesPitch + warp.first_elem / 2 + block_at(kBytesPitch),
            of_span = warp.first_elem / 2 + column_at(kBytesPitch);
        uint32_t quartet = threadIdx.x % kWarpSize / 4, member = threadIdx.x % 4;
#pragma unroll 2
        for (uint32_t block = 0; block < Shape::kElems / BLOCK_ELEMS; block++) {
            uint32_t a[4], first_piece = warp.first_elem / CODES_PIECE + 2 * block;
            load_matrices<false>(a, shared.bytes + queries + 16 * block);
            float steps[2][2];
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
#pragma unroll
                for (uint32_t piece = 0; piece < 2; piece++)
                    steps[half][piece] =
                        shared.query_steps[warp.first_vector + quartet + 8 * half][first_piece + piece];
            }
#pragma unroll
            for (uint32_t two = 0; two < kTiles / 2; two++) {
                uint32_t of_keys[4];
                load_matrices<false>(of_keys, shared.keys + 16 * two * kBytesPitch + 16 * block + of_span);
#pragma unroll
                for (uint32_t t = 2 * two; t < 2 * two + 2; t++) {
                    float scales[2];
#pragma unroll
                    for (uint32_t i = 0; i < 2; i++)
                        scales[i] = shared.key_scales[8 * t + 2 * member + i][first_piece / 2];
#pragma unroll
                    for (uint32_t piece = 0; piece < 2; piece++) {
                        int32_t products[4];
                        uint32_t of_piece[2] = {a[2 * piece], a[2 * piece + 1]};
                        mma_s8_16x8x16(products, of_piece, of_keys[t % 2 * 2 + piece], 0);
#pragma unroll
                        for (uint32_t i = 0; i < 4; i++)
                            sums[t][i] += float(products[i]) * (steps[i / 2][piece] * scales[i % 2]);
                    }
                }
            }
        }
    }
    template <class Sums>
    DEVICE void scores(const Shared& shared, const WarpTask<D>& warp, uint32_t, Sums& sums) const {
        if (p.kv.forms[0] == BLOCKS_HALVES) scores_of_halves<D>(shared, warp, sums);
    }

    DEVICE float step(const Shared& shared, uint32_t at, uint32_t elem) const {
        return shared.scales[at][elem / BLOCK_ELEMS];
    }
    DEVICE float exponent(const Shared& shared, uint32_t at) const { return shared.exponents[at]; }

    DEVICE void transform_back(Vector& v) const {
        if (p.kv.forms[1] != BLOCKS_HALVES) ::transform_back(v, p.kv);
    }
};

static_assert(
    sizeof(BlocksSource<64>::Shared) <= ATTEND_MMA_BLOCKS_SHARED_BYTES_64, "the host asks for less");
static_assert(
    sizeof(BlocksSource<128>::Shared) <= ATTEND_MMA_BLOCKS_SHARED_BYTES_128, "the host asks for less");
static_assert(
    sizeof(BlocksSource<256>::Shared) <= ATTEND_MMA_BLOCKS_SHARED_BYTES_256, "the host asks for less");
