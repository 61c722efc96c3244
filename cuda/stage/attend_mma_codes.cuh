// Attend over codes for many rows of one sequence, on tensor cores: attend_mma.cuh with the codecs of
// attend_row.cuh.
//
// A page is read from its codes or its exact page, as single rows would: all rows of a tile make the same
// choice, because a tile ends where the window moves (src/backend/cuda/attend.rs). A span of codes is
// unpacked once for all query vectors of a block, keys to bytes and values to f16: registers hold the codes
// of the next span until they are unpacked to shared memory. Spans of exact pages are copied.
//
// Scores of codes are byte products with queries in 255 steps, weights are relative to the largest product
// with a value's scale, and values are the f16 nearest to the codebook, all as in attend_row.cuh, so prefill
// and decode use the same values. Products of queries with the means of pages are products of f16, computed
// once for kMeans pages, with the pages for the positions.
//
// Reads 2 x (2 + bits x D / 8) bytes per position, KV head and tile, a mean per page, and 4 x D bytes per
// exact position. Queries
// are rotated beforehand (append.cuh); the output is rotated back here. Requires head_dim = D, `arrived` = 0.
#pragma once

#include "attend_mma.cuh"
#include "attend_row.cuh"

// Pages of one sequence and KV head, up to position `end`.
template <class C, int D>
struct CodesSource {
    using K = typename C::Keys;
    using V = typename C::Values;

    using Shape = TileShape<D>;

    static constexpr bool kSteps = true, kMayBreak = false;
    static constexpr int kStepElems = D;
    static constexpr uint32_t kSpan = Shape::kSpan, kTiles = Shape::kTiles, kPieces = D / CODES_PIECE;
    // Threads per block, and pieces of a span per thread.
    static constexpr uint32_t kThreads = Shape::kWarps * kWarpSize;
    static constexpr uint32_t kOwn = (kSpan * kPieces + kThreads - 1) / kThreads;
    // Pages whose means are multiplied at a time: 8 per warp.
    static constexpr uint32_t kMeans = 8 * Shape::kSharers;
    // Pitch of a vector of bytes, in f16 units.
    static constexpr uint32_t kBytesPitch = kPitch<D / 2>;

    struct Shared : AttendShared<D> {
        // Query vectors in 255 steps; `keys` has the same layout.
        uint16_t bytes[Shape::kVectors * kBytesPitch];
        // Value of one unit of a byte product.
        float of_bytes[Shape::kVectors];
        // Products with the means of pages; page i is in row i % kMeans.
        float of_means[kMeans][Shape::kVectors];
        // Scales of the span's keys, for each group, and of its values, and exponents of the latter.
        float key_scales[K::kGroups ? 2 : 1][kSpan], steps[kSpan], exponents[kSpan];
    };

    const AttendCodesMmaParams& p;
    uint32_t seq, n_positions, kv_head_at, end;
    // State of the span being loaded: true if it is codes, for keys and for values, and the thread's share of
    // it.
    bool coded[2];
    typename K::Piece keys[kOwn];
    typename V::Piece values[kOwn];
    uint16_t scales[2];

    DEVICE CodesSource(const AttendCodesMmaParams& p, const StepRow& row, uint32_t end)
        : p(p), seq(row.seq), n_positions(row.pos + 1), kv_head_at(blockIdx.x / p.head_tiles), end(end) {}

    DEVICE void load_queries(Shared& shared, const TileTask& task) const {
        uint32_t lane = threadIdx.x % kWarpSize;
        ::load_queries<D>(p, shared, task, [&](
            uint32_t i, const auto& vector, uint32_t largest
        ) {
            uint8_t* to = reinterpret_cast<uint8_t*>(shared.bytes + i * kBytesPitch);
            bool broken = largest >= 0x7f800000u;
            float most = __uint_as_float(largest), to_bytes = largest > 0 && !broken ? 127.0f / most : 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < D / kWarpSize; j++) {
                float x = vector[j];
                to[lane + kWarpSize * j] = broken ? uint8_t(0) : uint8_t(int32_t(rintf(x * to_bytes)));
            }
            if (lane == 0) shared.of_bytes[i] = broken ? NAN : most / 127.0f * KeyShare<K, D>::unit(p.kv);
        });
    }

    // Multiplies the queries with the means of up to kMeans pages, from position `first` on. The previous
    // products must no longer be needed.
    DEVICE void multiply_means(Shared& shared, uint32_t first) const {
        uint32_t thread = recomputed(threadIdx.x), sharer = thread / kWarpSize % Shape::kSharers;
        Place at(thread);
        // Row of the first of the warp's pages, and the lane's page.
        uint32_t row = 8 * sharer, i = first / PAGE_POSITIONS / kMeans * kMeans + row + at.quartet;
        uint32_t page = NO_PAGE;
        if (i >= first / PAGE_POSITIONS && i * PAGE_POSITIONS < end)
            page = coded_page_for(p.kv, p.step, seq, n_positions, i);
        MeanAt mean = mean_at<C>(p.kv, page != NO_PAGE ? page : 0, kv_head_at);
        float scale = page != NO_PAGE ? float_of_half(*mean.scale()) : 0.0f, sums[4] = {};
        uint32_t vector = WarpTask<D>(thread).first_vector;
#pragma unroll 4
        for (uint32_t k = 0; k < D / 16; k++) {
            uint32_t high[4], low[4], b[2] = {};
            load_matrices<false>(high, shared.high + vector * kPitch<D> + block_at(kPitch<D>) + 16 * k);
            load_matrices<false>(low, shared.low + vector * kPitch<D> + block_at(kPitch<D>) + 16 * k);
#pragma unroll
            for (uint32_t half = 0; half < 2 && page != NO_PAGE; half++) {
                const uint8_t* from = mean.elems + 16 * k + 8 * half + 2 * at.member;
                uint32_t two = *reinterpret_cast<const uint16_t*>(from);
                b[half] = half2_bits(float(int8_t(two)), float(int8_t(two >> 8)));
            }
            mma_f16_16x8x16(sums, low, b);
            mma_f16_16x8x16(sums, high, b);
        }
#pragma unroll
        for (uint32_t which = 0; which < 4; which++) {
            uint32_t column = 2 * at.member + which % 2, of = vector + at.quartet + which / 2 * 8;
            float of_page = __shfl_sync(kWarp, scale, int(4 * column));
            shared.of_means[row + column][of] = sums[which] * (shared.unscale[of] * of_page);
        }
    }

    DEVICE void begin_span(Shared& shared, uint32_t first, bool is_first) const {
        if (is_first || first % (kMeans * PAGE_POSITIONS) == 0) multiply_means(shared, first);
    }

    // Loads this thread's pieces of a span that starts at `place` of a page.
    template <class Codes>
    DEVICE static void fetch(
        const CodedPage<Codes>& page, uint32_t place, typename Codes::Piece (&to)[kOwn], uint16_t& scale
    ) {
#pragma unroll
        for (uint32_t i = 0; i < kOwn; i++) {
            uint32_t at = threadIdx.x + i * kThreads;
            if (at >= kSpan * kPieces) break;
            to[i] = Codes::load(page.vector(D, place + at / kPieces), kPieces, at % kPieces);
        }
        scale = *page.scale(place + threadIdx.x % kSpan);
    }

    DEVICE void start(Shared& shared, uint32_t part, uint32_t first) {
        if (first < end) {
            uint32_t i = first / PAGE_POSITIONS, place = first % PAGE_POSITIONS;
            uint32_t exact = exact_page_for(p.kv, p.step, seq, n_positions, i);
            coded[part] = exact == NO_PAGE;
            if (!coded[part]) {
                const uint16_t* from = exact_head(p.kv, exact, part, kv_head_at) + place * D;
                start_copy<D>(from, D, end - first, part == 0 ? shared.keys : shared.values);
            } else if (part == 0) {
                fetch(coded_keys<C>(p.kv, page_of(p.step, seq, first), kv_head_at), place, keys, scales[0]);
            } else {
                fetch(coded_values<C>(p.kv, page_of(p.step, seq, first), kv_head_at),
                    place, values, scales[1]);
            }
        }
        cp_async_commit();
    }

    DEVICE void arrive(Shared& shared, uint32_t part) {
        if (part == 1 && threadIdx.x < kSpan) {
            float step = coded[1] ? float_of_half(scales[1]) : 1.0f;
            shared.steps[threadIdx.x] = step;
            shared.exponents[threadIdx.x] = exponent_of(step);
        }
        if (!coded[part]) return;
        if (part == 0 && threadIdx.x < kSpan) {
            if constexpr (K::kGroups) {
#pragma unroll
                for (uint32_t group = 0; group < 2; group++)
                    shared.key_scales[group][threadIdx.x] = K::scale(D, scales[0], group);
            } else {
                shared.key_scales[0][threadIdx.x] = float_of_half(scales[0]);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < kOwn; i++) {
            uint32_t at = threadIdx.x + i * kThreads, pos = at / kPieces, elem = at % kPieces * CODES_PIECE;
            if (pos >= kSpan) break;
            if (part == 0) {
                uint32_t words[4], table[2];
                C::key_table(p.kv, at % kPieces, kPieces, table);
                K::bytes(keys[i], table, words);
                uint4* to = reinterpret_cast<uint4*>(shared.keys + pos * kBytesPitch + elem / 2);
                *to = make_uint4(words[0], words[1], words[2], words[3]);
            } else {
                uint32_t words[8];
                V::halves(values[i], p.kv.codes.halves, words);
                uint4* to = reinterpret_cast<uint4*>(shared.values + pos * kPitch<D> + elem);
                to[0] = make_uint4(words[0], words[1], words[2], words[3]);
                to[1] = make_uint4(words[4], words[5], words[6], words[7]);
            }
        }
    }

    // Sums of byte products are exact, also as floats; those of keys in two groups are multiplied by the
    // scales of the keys.
    template <class Sums>
    DEVICE void products(const Shared& shared, const WarpTask<D>& warp, Sums& out) const {
        if (!coded[0]) {
            products_of_halves<D>(shared, warp, out);
            return;
        }
        uint32_t queries = warp.first_vector * kBytesPitch + warp.first_elem / 2 + block_at(kBytesPitch),
            of_span = warp.first_elem / 2 + column_at(kBytesPitch);
        // Steps of 32 elements; after kOfGroup, those of another group follow.
        constexpr int kSteps = Shape::kElems / 32;
        constexpr int kOfGroup = K::kGroups && Shape::kElems > D / 2 ? D / 64 : kSteps;
        int32_t sums[kTiles][4] = {};
#pragma unroll
        for (int k = 0; k < kSteps; k++) {
            uint32_t a[4];
            load_matrices<false>(a, shared.bytes + queries + 16 * k);
#pragma unroll
            for (uint32_t two = 0; two < kTiles / 2; two++) {
                uint32_t of_keys[4];
                load_matrices<false>(of_keys, shared.keys + 16 * two * kBytesPitch + 16 * k + of_span);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t b[2] = {of_keys[2 * i], of_keys[2 * i + 1]};
                    mma_s8_16x8x32(sums[2 * two + i], a, b);
                }
            }
            if ((k + 1) % kOfGroup != 0) continue;
#pragma unroll
            for (uint32_t t = 0; t < kTiles; t++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float sum = float(sums[t][i]);
                    if constexpr (K::kGroups) {
                        uint32_t group = (warp.first_elem + 32 * k) / (D / 2);
                        sum *= shared.key_scales[group][8 * t + 2 * (threadIdx.x % 4) + i % 2];
                    }
                    out[t][i] = k < kOfGroup ? sum : out[t][i] + sum;
                    sums[t][i] = 0;
                }
            }
        }
    }

    template <class Sums>
    DEVICE void scores(
        const Shared& shared, const WarpTask<D>& warp, uint32_t first, Sums& sums
    ) const {
        if (!coded[0]) {
            scores_of_halves<D>(shared, warp, sums);
            return;
        }
        Place at;
        float worth[2], along[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            worth[half] = shared.of_bytes[warp.first_vector + at.quartet + 8 * half];
            along[half] =
                shared.of_means[first / PAGE_POSITIONS % kMeans][warp.first_vector + at.quartet + 8 * half];
        }
#pragma unroll
        for (uint32_t t = 0; t < kTiles; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float by = worth[i / 2];
                if constexpr (!K::kGroups) by *= shared.key_scales[0][8 * t + 2 * at.member + i % 2];
                sums[t][i] = fmaf(sums[t][i], by, along[i / 2]);
            }
        }
    }

    DEVICE float step(const Shared& shared, uint32_t at, uint32_t) const { return shared.steps[at]; }
    DEVICE float exponent(const Shared& shared, uint32_t at) const { return shared.exponents[at]; }

    DEVICE void transform_back(Vector& v) const { ::transform_back(v, p.kv.codes); }
};

static_assert(sizeof(CodesSource<Alike<Codes3>, 64>::Shared) <= ATTEND_MMA_CODES_SHARED_BYTES_64,
    "the host asks for less");
static_assert(sizeof(CodesSource<Alike<Codes3>, 128>::Shared) <= ATTEND_MMA_CODES_SHARED_BYTES_128,
    "the host asks for less");
static_assert(sizeof(CodesSource<Alike<Codes3>, 256>::Shared) <= ATTEND_MMA_CODES_SHARED_BYTES_256,
    "the host asks for less");
