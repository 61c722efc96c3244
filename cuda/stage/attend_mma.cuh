// Attend for many rows of one sequence, on tensor cores: out[r] = softmax(cap(scale q[r] . K[first ..=
// last])) V, with the soft cap of attend.cuh.
//
// Flash attention over an f16 cache. A block owns a tile of the batch, up to kVectors / heads neighbouring
// rows at consecutive positions of one sequence, and one KV head with up to `heads` of its query heads: x =
// KV head and tile of query heads, y = tile of rows (the last and longest first) and split of its positions.
// If there are few tiles, several blocks share the spans of a tile, and the last one to arrive merges their
// results in `partial`. The query vectors of the block, row by row, are the rows of the products. One warp
// owns 16 of them, or two warps, each for half of the elements, which add their scores through shared memory.
// So keys and values are read once for all query vectors, kSpan positions at a time, through shared memory:
// keys of the next span are loaded while values of the current one are multiplied, and vice versa.
//
// Products are f16 with float sums (mma m16n8k16), and as precise as float products: a query vector times a
// power of two, and a weight times 2^14, are each split into two f16 (22 bits), which are multiplied one
// after the other. The scaling by powers of two is exact. Tensor cores sum weighted values over one span
// only, and spans are added as floats, because tensor core accumulators truncate towards zero, which would
// add up over thousands of positions.
//
// Spans before the windows of all rows of a tile are not read, and positions after the last visible one are
// zeros in shared memory. In spans that rows see partly, a weight of 0 must not be multiplied by an infinite
// or NaN value: such values are replaced by 0, and rows that do see them add them one by one.
//
// The kernel is a template over a source, which loads keys and values into shared memory and computes scores:
// an f16 cache here, codes in attend_mma_codes.cuh, blocks in attend_mma_blocks.cuh.
//
// Reads 2 head_dim f16 per position, KV head and tile. Requires head_dim <= D, zeros after each vector up to
// the stride, and `arrived` = 0.
#pragma once

#include "../lib/halves.cuh"
#include "../lib/rotate.cuh"
#include "attend.cuh"

// Tile sizes by head_dim.
template <int D>
struct TileShape {
    // Query vectors per block, and warps that share 16 of them.
    static constexpr int kVectors = D > 128 ? ATTEND_MMA_VECTORS_256 : ATTEND_MMA_VECTORS;
    static constexpr int kSharers = D < 128 ? 1 : 2;
    static constexpr int kWarps = kVectors / 16 * kSharers;
    // Elements per warp.
    static constexpr int kElems = D / kSharers;
    // Positions per span, and 8-column products per span.
    static constexpr int kSpan = D > 128 ? 16 : 32;
    static constexpr int kTiles = kSpan / 8;
};

// Smallest number of positions per split: shorter splits cost more to merge than they save.
constexpr uint32_t kLeastPositions = 128;

// Work of a block.
struct alignas(16) TileTask {
    // Tile, split of its positions, and number of splits.
    uint32_t tile, split, splits;
    // First position that all rows see, and the end of those.
    uint32_t all_from, all_end;
    // If rows attend ahead, the last position of the sequence in the batch.
    uint32_t text_end;
    // First row and head of the tile, number of heads, position of the first row, and number of query vectors
    // (rows x heads).
    uint32_t first_row, first_head, heads, pos, n;

    // Address of the parts of a split's vectors, [kVectors, 2 + head_dim].
    template <int D, class Params>
    DEVICE float* part(const Params& p, uint32_t of_split) const {
        uint64_t block = (uint64_t(tile) * gridDim.x + blockIdx.x) * most_splits(p) + of_split;
        return p.common.partial + block * TileShape<D>::kVectors * (2 + p.kv.head_dim);
    }
    template <class Params>
    DEVICE static uint32_t most_splits(const Params& p) {
        uint32_t most = p.blocks / (p.step.counts->tiles * gridDim.x);
        return most > 0 ? most : 1;
    }
};

// A kernel of tiles, for a head_dim of at most D.
#define MMA_KERNEL(name, D, Params, resident) \
    RESIDENT_KERNEL(name##__mma##D, Params, ATTEND_MMA_THREADS_##D, resident)

template <int D>
struct AttendShared {
    using Shape = TileShape<D>;
    // Query vectors, multiplied by a power of two and split into two f16. At the end, a part as in `partial`.
    uint16_t high[Shape::kVectors * kPitch<D>], low[Shape::kVectors * kPitch<D>];
    uint16_t keys[Shape::kSpan * kPitch<D>], values[Shape::kSpan * kPitch<D>];
    // Partial scores, for the warp with the other half of the elements.
    float others[Shape::kSharers > 1 ? Shape::kWarps * 4 * Shape::kTiles * kWarpSize : 4];
    // Inverse of that power of two.
    float unscale[Shape::kVectors];
    // Number of pairs of elements with infinity or NaN, per position of the values.
    uint32_t broken[Shape::kSpan];
    // In shared memory to free registers while spans are multiplied.
    TileTask task;
};

// A warp's share of the products.
template <int D>
struct WarpTask {
    // First of its 16 query vectors, and first of its elements.
    uint32_t first_vector, first_elem;

    DEVICE explicit WarpTask(uint32_t thread) {
        uint32_t warp = thread / kWarpSize;
        first_vector = warp / TileShape<D>::kSharers * 16;
        first_elem = warp % TileShape<D>::kSharers * TileShape<D>::kElems;
    }
};

// Query vectors per warp whose loads are in flight at a time.
constexpr uint32_t kQueriesAtOnce = 4;

// Loads the query vectors into shared memory, one warp per vector; missing vectors are 0. Also calls keep(i,
// vector, largest) for each: its index, the lane's elements lane + 32 j, and the bits of its largest
// magnitude.
template <int D, class Params, class Keep>
DEVICE void load_queries(
    const Params& p, AttendShared<D>& shared, const TileTask& task, Keep keep
) {
    uint32_t lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, head_dim = p.kv.head_dim;
    const float factor = p.common.scale * 1.4426950408889634f;
    constexpr uint32_t kOwn = D / kWarpSize, kVectorsOfWarp = 16 / TileShape<D>::kSharers;
#pragma unroll 1
    for (uint32_t at = 0; at < kVectorsOfWarp; at += kQueriesAtOnce) {
        uint32_t base = kVectorsOfWarp * warp + at;
        float x[kQueriesAtOnce][kOwn];
#pragma unroll
        for (uint32_t v = 0; v < kQueriesAtOnce; v++) {
            uint32_t i = base + v, row = task.first_row + i / task.heads,
                head = task.first_head + i % task.heads;
            const float* q =
                p.common.q + (uint64_t(row) * p.kv.n_kv_heads * p.common.group + head) * head_dim;
#pragma unroll
            for (uint32_t j = 0; j < kOwn; j++) {
                uint32_t e = lane + kWarpSize * j;
                x[v][j] = i < task.n && e < head_dim ? q[e] : 0.0f;
            }
        }
#pragma unroll
        for (uint32_t v = 0; v < kQueriesAtOnce; v++) {
            uint32_t i = base + v, largest = 0;
#pragma unroll
            for (uint32_t j = 0; j < kOwn; j++) {
                x[v][j] *= factor;
                largest = Max::of(largest, __float_as_uint(x[v][j]) & 0x7fffffffu);
            }
            largest = reduce_warp<Max>(largest);
            bool broken = largest >= 0x7f800000u;
            PowerOfTwo power = PowerOfTwo::of(largest);
#pragma unroll
            for (uint32_t j = 0; j < kOwn; j++) {
                TwoHalves halves = TwoHalves::of(x[v][j] * power.by);
                uint32_t at = i * kPitch<D> + lane + kWarpSize * j;
                shared.high[at] = broken ? 0x7e00u : halves.high;
                shared.low[at] = broken ? 0u : halves.low;
            }
            if (lane == 0) shared.unscale[i] = broken ? 1.0f : power.back;
            keep(i, x[v], largest);
        }
    }
}

// Starts to copy the vectors of a span's first n positions, `stride` f16 each; the others become 0.
template <int D>
DEVICE void start_copy(const uint16_t* from, uint32_t stride, uint32_t n, uint16_t* to) {
    uint32_t pieces = stride / 8;
    for (uint32_t at = threadIdx.x; at < TileShape<D>::kSpan * pieces; at += blockDim.x) {
        uint32_t pos = at / pieces, elem = at % pieces * 8;
        uint16_t* piece = to + pos * kPitch<D> + elem;
        if (pos < n) {
            cp_async16(piece, from + pos * stride + elem);
        } else {
            *reinterpret_cast<uint4*>(piece) = make_uint4(0, 0, 0, 0);
        }
    }
}

// Offset of the 16 bytes that a lane passes to load_matrices for a 16 x 16 block of f16, with rows `pitch`
// elements apart: row lane % 16, first or second half.
DEVICE uint32_t block_at(uint32_t pitch) {
    uint32_t lane = threadIdx.x % kWarpSize;
    return lane % 16 * pitch + lane / 16 * 8;
}

// The same for a block whose columns are vectors: rows 0 to 7 twice, then rows 8 to 15 twice.
DEVICE uint32_t column_at(uint32_t pitch) {
    uint32_t lane = threadIdx.x % kWarpSize;
    return (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8;
}

// Products of a warp's query vectors (each times its power of two) with f16 keys in shared memory, over the
// warp's elements; the accumulator layout is that of attend_tiles.
template <int D>
DEVICE void products_of_halves(
    const AttendShared<D>& shared, const WarpTask<D>& warp, float (&out)[TileShape<D>::kTiles][4]
) {
    uint32_t queries = warp.first_vector * kPitch<D> + warp.first_elem + block_at(kPitch<D>),
        of_span = warp.first_elem + column_at(kPitch<D>);
#pragma unroll
    for (int k = 0; k < TileShape<D>::kElems / 16; k++) {
        uint32_t high[4], low[4];
        load_matrices<false>(high, shared.high + queries + 16 * k);
        load_matrices<false>(low, shared.low + queries + 16 * k);
#pragma unroll
        for (int two = 0; two < TileShape<D>::kTiles / 2; two++) {
            uint32_t keys[4];
            load_matrices<false>(keys, shared.keys + 16 * two * kPitch<D> + 16 * k + of_span);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t b[2] = {keys[2 * i], keys[2 * i + 1]};
                mma_f16_16x8x16(out[2 * two + i], low, b);
                mma_f16_16x8x16(out[2 * two + i], high, b);
            }
        }
    }
}

// Converts sums of such products to scores.
template <int D>
DEVICE void scores_of_halves(
    const AttendShared<D>& shared, const WarpTask<D>& warp, float (&scores)[TileShape<D>::kTiles][4]
) {
    uint32_t quartet = threadIdx.x % kWarpSize / 4;
    float unscale[2] = {
        shared.unscale[warp.first_vector + quartet], shared.unscale[warp.first_vector + quartet + 8]};
#pragma unroll
    for (int t = 0; t < TileShape<D>::kTiles; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) scores[t][i] *= unscale[i / 2];
    }
}

// Stores a warp's products for the warp that shares its query vectors; add_products adds those of the other.
template <int D>
DEVICE void leave_products(AttendShared<D>& shared, const float (&products)[TileShape<D>::kTiles][4]) {
    if (TileShape<D>::kSharers == 1) return;
    uint32_t lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
#pragma unroll
    for (int i = 0; i < 4 * TileShape<D>::kTiles; i++)
        shared.others[(warp * 4 * TileShape<D>::kTiles + i) * kWarpSize + lane] = products[i / 4][i % 4];
}
template <int D>
DEVICE void add_products(const AttendShared<D>& shared, float (&products)[TileShape<D>::kTiles][4]) {
    if (TileShape<D>::kSharers == 1) return;
    uint32_t lane = threadIdx.x % kWarpSize, other = threadIdx.x / kWarpSize ^ 1;
#pragma unroll
    for (int i = 0; i < 4 * TileShape<D>::kTiles; i++)
        products[i / 4][i % 4] += shared.others[(other * 4 * TileShape<D>::kTiles + i) * kWarpSize + lane];
}

// Finds infinite and NaN values, and replaces them by 0.
template <int D>
DEVICE void find_broken(AttendShared<D>& shared) {
    for (uint32_t at = threadIdx.x; at < TileShape<D>::kSpan * (D / 2); at += blockDim.x) {
        uint32_t pos = at / (D / 2);
        uint32_t* word = reinterpret_cast<uint32_t*>(shared.values + pos * kPitch<D>) + at % (D / 2);
        uint32_t bits = *word, kept = bits;
        if ((bits & 0x7c00u) == 0x7c00u) kept &= 0xffff0000u;
        if ((bits & 0x7c000000u) == 0x7c000000u) kept &= 0x0000ffffu;
        if (kept == bits) continue;
        *word = kept;
        atomicAdd(&shared.broken[pos], 1u);
    }
}

// Adds the infinite and NaN elements of a value from `first_elem` to `end_elem`, for which the products used
// 0. The value is that of position `at` of a span; `scores` and `out` are laid out as in attend_tiles, and
// `base` is what scores are relative to.
template <int kTiles, int kOut>
DEVICE void add_broken(
    const uint16_t* value, uint32_t first_elem, uint32_t end_elem, uint32_t at,
    const float (&scores)[kTiles][4], const float (&base)[2], float (&out)[kOut][4]
) {
    uint32_t lane = threadIdx.x % kWarpSize, member = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float score = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < 2 * kTiles; i++) {
            if (at / 8 == i / 2 && at % 2 == i % 2) score = scores[i / 2][2 * half + i % 2];
        }
        score = __shfl_sync(kWarp, score, static_cast<int>((lane & ~3u) + at % 8 / 2));
        if (score == -INFINITY) continue;
        float weight = exp2_fast(score - base[half] + 14.0f);
#pragma unroll
        for (uint32_t t = 0; t < kOut; t++) {
            // An odd number of elements is followed by a zero.
            uint32_t elem = first_elem + 8 * t + 2 * member,
                two = elem < end_elem ? *reinterpret_cast<const uint32_t*>(value + elem) : 0u;
            float2 numbers = floats_of_half2(two);
            if ((two & 0x7c00u) == 0x7c00u) out[t][2 * half] += weight * numbers.x;
            if ((two & 0x7c000000u) == 0x7c000000u) out[t][2 * half + 1] += weight * numbers.y;
        }
    }
}

// Weight of a head's sink, times 2^14 like the others.
DEVICE float tile_sink(float sink, float largest) {
    return sink_weight(sink, largest - 14.0f);
}

// Merges the parts of a tile's splits, given by of(split), and writes the result. A warp owns a vector.
template <class Source, class Params, class Of>
DEVICE void merge_splits(const Source& source, const Params& p, const TileTask& task, Of of) {
    uint32_t head_dim = p.kv.head_dim;
    for (uint32_t vector = threadIdx.x / kWarpSize; vector < task.n; vector += blockDim.x / kWarpSize) {
        float largest = -INFINITY, sum = 0.0f;
        for (uint32_t split = 0; split < task.splits; split++)
            largest = fmaxf(largest, of(split)[vector * (2 + head_dim)]);
        Vector values = {};
        values.n = head_dim / kWarpSize;
        for (uint32_t split = 0; split < task.splits; split++) {
            const float* part = of(split) + vector * (2 + head_dim);
            // The row sees no position of this split.
            if (part[1] == 0.0f) continue;
            float by = rescale(part[0], largest);
            sum = fmaf(part[1], by, sum);
#pragma unroll
            for (uint32_t j = 0; j < kLaneElems; j++) {
                if (Vector::elem(j) < head_dim)
                    values.x[j] = fmaf(part[2 + Vector::elem(j)], by, values.x[j]);
            }
        }
        if (p.common.sinks) sum += tile_sink(p.common.sinks[task.first_head + vector % task.heads], largest);
#pragma unroll
        for (uint32_t j = 0; j < kLaneElems; j++) values.x[j] /= sum;
        source.transform_back(values);
        uint64_t to_row = task.first_row + vector / task.heads;
        float* to = p.common.out +
            (to_row * p.kv.n_kv_heads * p.common.group + task.first_head + vector % task.heads) * head_dim;
#pragma unroll
        for (uint32_t j = 0; j < kLaneElems; j++) {
            if (Vector::elem(j) < head_dim) to[Vector::elem(j)] = values.x[j];
        }
    }
}

// An f16 cache: one sequence and KV head, up to position `end`.
template <int D>
struct HalvesSource {
    struct Shared : AttendShared<D> {};
    // True if values have scales (`step`, for kStepElems elements each), and true if they may be infinite or
    // NaN.
    static constexpr bool kSteps = false, kMayBreak = true;
    static constexpr int kStepElems = D;

    const AttendMmaParams& p;
    uint32_t seq, end;

    DEVICE HalvesSource(const AttendMmaParams& p, const StepRow& row, uint32_t end)
        : p(p), seq(row.seq), end(end) {}

    DEVICE const uint16_t* vectors(uint32_t part, uint32_t first) const {
        // Recomputed: keeping the head's index costs registers.
        const uint8_t* of_head =
            kv_head(p.kv, page_of(p.step, seq, first), part, blockIdx.x / p.head_tiles);
        return reinterpret_cast<const uint16_t*>(of_head) + first % PAGE_POSITIONS * p.kv.stride;
    }
    DEVICE void load_queries(Shared& shared, const TileTask& task) const {
        ::load_queries<D>(p, shared, task, [](uint32_t, const auto&, uint32_t) {});
    }
    // Starts to load keys (part 0) or values (part 1) of the span that starts at `first`, if it exists.
    DEVICE void start(Shared& shared, uint32_t part, uint32_t first) {
        if (first < end)
            start_copy<D>(vectors(part, first), p.kv.stride, end - first,
                part == 0 ? shared.keys : shared.values);
        cp_async_commit();
    }
    // Called before the span from position `first` on arrives, when no warp needs the previous one.
    DEVICE void begin_span(Shared&, uint32_t, bool) const {}
    // Writes what was loaded into registers to shared memory.
    DEVICE void arrive(Shared&, uint32_t) {}
    // Sums over the warp's elements; sums over all elements are then converted to scores.
    template <class Sums>
    DEVICE void products(const Shared& shared, const WarpTask<D>& warp, Sums& sums) const {
        products_of_halves<D>(shared, warp, sums);
    }
    template <class Sums>
    DEVICE void scores(const Shared& shared, const WarpTask<D>& warp, uint32_t, Sums& sums) const {
        scores_of_halves<D>(shared, warp, sums);
    }
    // Value of position `at` in the cache.
    DEVICE const uint16_t* value(uint32_t at) const { return vectors(1, at); }
    // Scale of the elements from `elem` on of the value at position `at` of the span, and the exponent of the
    // largest scale.
    DEVICE float step(const Shared&, uint32_t, uint32_t) const { return 1.0f; }
    DEVICE float exponent(const Shared&, uint32_t) const { return 0.0f; }
    // Rotates a vector back.
    DEVICE void transform_back(Vector&) const {}
};

static_assert(sizeof(HalvesSource<64>::Shared) <= ATTEND_MMA_SHARED_BYTES_64, "the host asks for less");
static_assert(sizeof(HalvesSource<128>::Shared) <= ATTEND_MMA_SHARED_BYTES_128, "the host asks for less");
static_assert(sizeof(HalvesSource<256>::Shared) <= ATTEND_MMA_SHARED_BYTES_256, "the host asks for less");

// A span's weights as operands of the value products, times the values' scale from `elem` on: rows `quartet`
// and `quartet + 8` of 8 columns, then of the next 8.
template <class Source, int kTiles>
DEVICE void weights_as_halves(
    const Source& source, const typename Source::Shared& shared, uint32_t elem,
    const float (&weights)[kTiles][4], uint32_t (&high)[kTiles / 2][4], uint32_t (&low)[kTiles / 2][4]
) {
    uint32_t member = threadIdx.x % 4;
#pragma unroll
    for (int t = 0; t < kTiles; t++) {
        float steps[2] = {1.0f, 1.0f};
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (Source::kSteps) steps[i] = source.step(shared, 8 * t + 2 * member + i, elem);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float a = weights[t][2 * half] * steps[0], b = weights[t][2 * half + 1] * steps[1];
            uint32_t two = half2_bits(a, b);
            float2 there = floats_of_half2(two);
            high[t / 2][t % 2 * 2 + half] = two;
            low[t / 2][t % 2 * 2 + half] = half2_bits(a - there.x, b - there.y);
        }
    }
}

template <int D, class Source, class Params>
DEVICE void attend_tiles(const Params& p) {
    using Shape = TileShape<D>;
    constexpr int kOut = Shape::kElems / 8, kTiles = Shape::kTiles;
    constexpr uint32_t kSpan = Shape::kSpan;
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t n_tiles = p.step.counts->tiles;
    if (n_tiles == 0) return;
    uint32_t most_splits = TileTask::most_splits(p);
    if (blockIdx.y >= n_tiles * most_splits) return;
    TileTask task;
    task.tile = n_tiles - 1 - blockIdx.y / most_splits;
    StepTile tile = p.tiles[task.tile];
    StepRow row = p.step.rows[tile.first];
    uint32_t kv_head_at = blockIdx.x / p.head_tiles, before_head = blockIdx.x % p.head_tiles * p.heads;
    task.first_row = tile.first;
    task.pos = row.pos;
    task.first_head = kv_head_at * p.common.group + before_head;
    task.heads = p.common.group - before_head < p.heads ? p.common.group - before_head : p.heads;
    task.n = tile.rows * task.heads;
    // Of the tile's rows, the first sees the most earlier and the fewest later positions, the last the
    // reverse.
    uint32_t before = first_seen(row.pos, p.common.window) / kSpan, last_pos = row.pos + tile.rows - 1;
    task.text_end = p.common.ahead == 0 ? last_pos : p.common.texts[tile.first].end;
    task.all_from = first_seen(last_pos, p.common.window);
    uint32_t all_end = last_seen(p.common, tile.first, row.pos) + 1;
    task.all_end = all_end;
    uint32_t n_positions = last_seen(p.common, tile.first + tile.rows - 1, last_pos) + 1;
    uint32_t n_spans = (n_positions + kSpan - 1) / kSpan - before;
    uint32_t spans = (n_spans + most_splits - 1) / most_splits;
    spans = spans > kLeastPositions / kSpan ? spans : kLeastPositions / kSpan;
    task.splits = (n_spans + spans - 1) / spans;
    task.split = blockIdx.y % most_splits;
    if (task.split >= task.splits) return;
    uint32_t begin = (before + task.split * spans) * kSpan, end = begin + spans * kSpan;
    if (end > n_positions) end = n_positions;

    using Shared = typename Source::Shared;
    static_assert(Shape::kVectors * (2 + D) * 4 <= 2 * sizeof(Shared::high), "a part does not fit");
    Shared& shared = *reinterpret_cast<Shared*>(shared_memory());
    Source source(p, row, end);
    // Zeros after the vectors, and for positions that are not loaded.
    for (uint32_t at = threadIdx.x; at < kSpan * kPitch<D>; at += blockDim.x)
        shared.keys[at] = shared.values[at] = 0;
    if (threadIdx.x < kSpan) shared.broken[threadIdx.x] = 0;
    if (threadIdx.x == 0) shared.task = task;
    __syncthreads();
    source.start(shared, 0, begin);
    source.start(shared, 1, begin);
    source.load_queries(shared, task);
    __syncthreads();

    // Accumulator layout: this lane has rows `lane / 4` and `lane / 4 + 8` of its warp's vectors, and of each
    // span columns 2 member + {0, 1}.
    WarpTask<D> warp(threadIdx.x);
    float sum[2] = {}, largest[2] = {-INFINITY, -INFINITY}, out[kOut][4] = {};

    for (uint32_t first = begin; first < end; first += kSpan) {
        source.begin_span(shared, first, first == begin);
        cp_async_wait<1>();
        source.arrive(shared, 0);
        __syncthreads();
        float scores[kTiles][4] = {};
        source.products(shared, warp, scores);
        leave_products<D>(shared, scores);
        cp_async_wait<0>();
        source.arrive(shared, 1);
        __syncthreads();
        add_products<D>(shared, scores);
        source.scores(shared, warp, first, scores);
        if (p.common.soft_cap > 0.0f) {
#pragma unroll
            for (int i = 0; i < 4 * kTiles; i++)
                scores[i / 4][i % 4] = capped_score(scores[i / 4][i % 4], score_cap(p.common));
        }
        source.start(shared, 0, first + kSpan);
        // With D = 128 there is no register left for it.
        uint32_t seen_end = D == 128 ? shared.task.all_end : all_end;
        bool cut = first + kSpan > seen_end || first < shared.task.all_from;
        if (Source::kMayBreak && cut) {
            find_broken<D>(shared);
            __syncthreads();
        }
        if (cut) {
            // Row positions are recomputed, so that they are not in registers meanwhile.
            uint32_t thread = recomputed(threadIdx.x),
                vector = WarpTask<D>(thread).first_vector + thread % kWarpSize / 4;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t row = (vector + 8 * half) / shared.task.heads, pos = shared.task.pos + row;
                uint32_t from = first_seen(pos, p.common.window),
                    span = last_seen(pos, p.common.ahead, shared.task.text_end) - from;
                // Vectors after the tile's have no row.
                if (p.common.whole_images && row * shared.task.heads < shared.task.n)
                    span = last_seen(p.common, shared.task.first_row + row, pos) - from;
#pragma unroll
                for (uint32_t i = 0; i < 2 * kTiles; i++) {
                    uint32_t at = first + 8 * (i / 2) + thread % 4 * 2 + i % 2;
                    if (at - from > span) scores[i / 2][2 * half + i % 2] = -INFINITY;
                }
            }
        }

        float highest[2] = {largest[0], largest[1]};
#pragma unroll
        for (int t = 0; t < kTiles; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float product = scores[t][i];
                if (Source::kSteps) product += source.exponent(shared, 8 * t + threadIdx.x % 4 * 2 + i % 2);
                highest[i / 2] = fmaxf(highest[i / 2], product);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            highest[half] = fmaxf(highest[half], __shfl_xor_sync(kWarp, highest[half], 1));
            highest[half] = fmaxf(highest[half], __shfl_xor_sync(kWarp, highest[half], 2));
            float by = rescale(largest[half], highest[half]);
            largest[half] = highest[half];
            sum[half] *= by;
#pragma unroll
            for (int t = 0; t < kOut; t++) {
                out[t][2 * half] *= by;
                out[t][2 * half + 1] *= by;
            }
        }
        // Weights are multiplied by 2^14, so that even small ones are normal f16; if values have scales, they
        // are relative to the largest product with their power of two, as in attend_row.cuh. A row that has
        // seen no position yet has weights of 0.
        float base[2];
#pragma unroll
        for (int half = 0; half < 2; half++) base[half] = largest[half] == -INFINITY ? 0.0f : largest[half];
        if constexpr (Source::kMayBreak) {
            if (cut) {
#pragma unroll 1
                for (uint32_t at = 0; at < kSpan; at++) {
                    if (shared.broken[at] == 0) continue;
                    uint32_t first_elem = WarpTask<D>(recomputed(threadIdx.x)).first_elem;
                    add_broken(
                        source.value(first + at), first_elem, p.kv.head_dim, at, scores, base, out);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < kTiles; t++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float* of_row = scores[t] + 2 * half;
#pragma unroll
                for (int i = 0; i < 2; i++) of_row[i] = exp2_fast(of_row[i] - base[half] + 14.0f);
                sum[half] += of_row[0] + of_row[1];
            }
        }
        uint32_t high[kTiles / 2][4], low[kTiles / 2][4];
#pragma unroll
        for (int t = 0; t < kOut; t += 2) {
            if (8 * t % Source::kStepElems == 0)
                weights_as_halves(source, shared, warp.first_elem + 8 * t, scores, high, low);
            float of_span[2][4] = {};
#pragma unroll
            for (int two = 0; two < kTiles / 2; two++) {
                uint32_t values[4];
                load_matrices<true>(values,
                    shared.values + 16 * two * kPitch<D> + warp.first_elem + 8 * t + block_at(kPitch<D>));
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t b[2] = {values[2 * i], values[2 * i + 1]};
                    mma_f16_16x8x16(of_span[i], low[two], b);
                    mma_f16_16x8x16(of_span[i], high[two], b);
                }
            }
#pragma unroll
            for (int i = 0; i < 8; i++) out[t + i / 4][i % 4] += of_span[i / 4][i % 4];
        }
        __syncthreads();
        if (Source::kMayBreak && cut && threadIdx.x < kSpan) shared.broken[threadIdx.x] = 0;
        source.start(shared, 1, first + kSpan);
    }

    // Without splits the part stays in shared memory, over the queries.
    float* of_block = reinterpret_cast<float*>(shared.high);
    const TileTask& done = shared.task;
    float* part = done.splits > 1 ? done.part<D>(p, done.split) : of_block;
#pragma unroll
    for (int half = 0; half < 2; half++) sum[half] = reduce_lanes<Sum>(sum[half], 4);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // Recomputed, so that it is in no register until here.
        uint32_t thread = recomputed(threadIdx.x);
        WarpTask<D> own(thread);
        uint32_t vector = own.first_vector + thread % kWarpSize / 4 + 8 * half;
        if (vector >= done.n) continue;
        float* to = part + vector * (2 + p.kv.head_dim);
        if (thread % 4 == 0 && own.first_elem == 0) {
            to[0] = largest[half];
            to[1] = sum[half];
        }
#pragma unroll
        for (int t = 0; t < kOut; t++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t elem = own.first_elem + 8 * t + thread % 4 * 2 + i;
                if (elem < p.kv.head_dim) to[2 + elem] = out[t][2 * half + i];
            }
        }
    }
    if (done.splits == 1) {
        __syncthreads();
        merge_splits(source, p, done, [&](uint32_t) { return of_block; });
        return;
    }
    uint32_t* arrived = p.common.arrived + done.tile * gridDim.x + blockIdx.x;
    if (!comes_last(arrived, done.splits, shared.broken)) return;
    merge_splits(source, p, done, [&](uint32_t split) { return done.part<D>(p, split); });
}
