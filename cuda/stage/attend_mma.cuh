// Attend for many rows of one sequence: out[r] = softmax(scale q[r] . K[first ..= last]) V, on tensor
// cores.
//
// Flash attention over a cache of halves. A block owns a tile of the step, up to kVectors / heads
// neighbouring rows at neighbouring positions of one sequence, and one KV head with up to `heads` of its
// query heads: x = KV head and tile of query heads, y = tile of rows, the last (and longest) first, and split
// of its positions: where tiles are few, several blocks take some spans each, and the one that comes last
// merges what they leave in `partial`. These query vectors, row by row, are the rows of the products. Each 16
// of them have a warp, or two, each of which multiplies half of the elements; products with keys are added up
// through shared memory. So keys and values are read once for all of them, kSpan positions at a time, through
// shared memory: keys of the next span are on their way while this one's values are multiplied, and the other
// way round.
//
// The products are of halves with float sums (mma m16n8k16), and no worse than float products: a query vector
// times a power of two, and a weight times 2^14, are each two halves, which keep 22 bits, and are multiplied
// one after the other. The rescaling is exact. Weighted values are summed by tensor cores over one span, and
// spans as floats: tensor cores cut off what an accumulator has no place for, always towards zero, and over
// thousands of positions that would add up.
//
// Spans before the windows of all rows of a tile are not read, and positions behind what its last row sees
// are zeros in shared memory. Where rows see different parts of a span, a weight of 0 must not meet a value
// that is no finite number: such values become 0 there, and rows that do see them add them one by one.
//
// The frame is a template over a source, which has keys and values brought to shared memory and makes scores
// of them: here of a cache of halves, in attend_mma_codes.cuh of one of codes, in attend_mma_blocks.cuh of
// one of blocks.
//
// Reads 2 head_dim halves of each position, KV head and tile. Needs head_dim <= D, zeros behind each vector,
// `arrived` 0.
#pragma once

#include "../lib/halves.cuh"
#include "../lib/rotate.cuh"
#include "attend.cuh"

// How a block is cut, by the elements of a vector.
template <int D>
struct TileShape {
    // Query vectors, and warps that share 16 of them.
    static constexpr int kVectors = D > 128 ? ATTEND_MMA_VECTORS_256 : ATTEND_MMA_VECTORS;
    static constexpr int kSharers = D < 128 ? 1 : 2;
    static constexpr int kWarps = kVectors / 16 * kSharers;
    // Elements that a warp multiplies.
    static constexpr int kElems = D / kSharers;
    // Positions of a page that are multiplied at a time, and products of these.
    static constexpr int kSpan = D > 128 ? 16 : 32;
    static constexpr int kTiles = kSpan / 8;
};

// Positions that a split has at least: fewer would cost less than the merging of their parts.
constexpr uint32_t kLeastPositions = 128;

// What a block does.
struct alignas(16) TileTask {
    // The tile, and the split and splits of its positions.
    uint32_t tile, split, splits;
    // The first position that all rows see, and the one behind the last.
    uint32_t all_from, all_end;
    // Where rows see ahead, the last position of the sequence in the step.
    uint32_t text_end;
    // Rows and query heads of the tile, the position of the first row, and query vectors: rows times heads.
    uint32_t first_row, first_head, heads, pos, n;

    // Where the parts of a split's vectors lie, [kVectors, 2 + head_dim].
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

// A kernel of tiles, for vectors of up to D elements.
#define MMA_KERNEL(name, D, Params, resident) \
    RESIDENT_KERNEL(name##__mma##D, Params, ATTEND_MMA_THREADS_##D, resident)

template <int D>
struct AttendShared {
    using Shape = TileShape<D>;
    // Of query vectors times a power of two: halves, and the halves nearest to what these lack. In the end,
    // a part as in `partial`.
    uint16_t high[Shape::kVectors * kPitch<D>], low[Shape::kVectors * kPitch<D>];
    uint16_t keys[Shape::kSpan * kPitch<D>], values[Shape::kSpan * kPitch<D>];
    // Scores of half of the elements, for the warp with the others.
    float others[Shape::kSharers > 1 ? Shape::kWarps * 4 * Shape::kTiles * kWarpSize : 4];
    // One over that power of two.
    float unscale[Shape::kVectors];
    // How many pairs of elements of a position's value are no finite numbers.
    uint32_t broken[Shape::kSpan];
    // Not kept in registers while spans are multiplied.
    TileTask task;
};

// What a warp of a block multiplies.
template <int D>
struct WarpTask {
    // The first of its 16 query vectors, and of its elements.
    uint32_t first_vector, first_elem;

    DEVICE explicit WarpTask(uint32_t thread) {
        uint32_t warp = thread / kWarpSize;
        first_vector = warp / TileShape<D>::kSharers * 16;
        first_elem = warp % TileShape<D>::kSharers * TileShape<D>::kElems;
    }
};

// Query vectors that a warp has on their way at a time.
constexpr uint32_t kQueriesAtOnce = 4;

// Brings the query vectors to shared memory, each by a warp; vectors that the tile lacks are 0. Calls keep(i,
// vector, largest) for each as well: its number, what a lane has of it, elements lane + 32 j, and the bits of
// its largest magnitude.
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

// Starts to copy the vectors of a span's first n positions, `stride` halves each; the others become 0.
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

// Which 16 bytes of a 16 x 16 block of halves a lane names to load_matrices, of rows that are so many halves
// apart: of row lane % 16, its first or second half.
DEVICE uint32_t block_at(uint32_t pitch) {
    uint32_t lane = threadIdx.x % kWarpSize;
    return lane % 16 * pitch + lane / 16 * 8;
}

// The same of a block whose columns are vectors: rows 0 to 7 twice, then rows 8 to 15 twice.
DEVICE uint32_t column_at(uint32_t pitch) {
    uint32_t lane = threadIdx.x % kWarpSize;
    return (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 8;
}

// Products of a warp's query vectors, each times its power of two, with keys that are halves in shared
// memory, over the warp's elements: a lane's as in attend_tiles.
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

// Scores of the sums of such products.
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

// Leaves a warp's products for the one that shares its query vectors, and adds what that one has left.
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

// Finds values that are no finite numbers, and makes them 0.
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

// Adds elements of a value, from `first_elem` on and below `end_elem`, that are no finite numbers, which the
// products took for 0. It is the one of position `at` of a span; `scores` and `out` are a lane's as in
// attend_tiles, `base` what scores are relative to.
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
            // Behind an odd number of elements is a zero.
            uint32_t elem = first_elem + 8 * t + 2 * member,
                two = elem < end_elem ? *reinterpret_cast<const uint32_t*>(value + elem) : 0u;
            float2 numbers = floats_of_half2(two);
            if ((two & 0x7c00u) == 0x7c00u) out[t][2 * half] += weight * numbers.x;
            if ((two & 0x7c000000u) == 0x7c000000u) out[t][2 * half + 1] += weight * numbers.y;
        }
    }
}

// The weight of a head's sink, times 2^14 as others are.
DEVICE float tile_sink(float sink, float largest) {
    return sink_weight(sink, largest - 14.0f);
}

// Merges the parts of a tile's splits, which of(split) has, and writes the result. A warp owns a vector.
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
            // A row that saw none of these positions.
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

// A cache of halves, of which a tile reads one sequence and KV head, up to position `end`.
template <int D>
struct HalvesSource {
    struct Shared : AttendShared<D> {};
    // Whether values count what `step` says, so many elements the same, and may be no finite numbers.
    static constexpr bool kSteps = false, kMayBreak = true;
    static constexpr int kStepElems = D;

    const AttendMmaParams& p;
    uint32_t seq, end;

    DEVICE HalvesSource(const AttendMmaParams& p, const StepRow& row, uint32_t end)
        : p(p), seq(row.seq), end(end) {}

    DEVICE const uint16_t* vectors(uint32_t part, uint32_t first) const {
        // The number of the head takes registers wherever it is kept.
        const uint8_t* of_head =
            kv_head(p.kv, page_of(p.step, seq, first), part, blockIdx.x / p.head_tiles);
        return reinterpret_cast<const uint16_t*>(of_head) + first % PAGE_POSITIONS * p.kv.stride;
    }
    DEVICE void load_queries(Shared& shared, const TileTask& task) const {
        ::load_queries<D>(p, shared, task, [](uint32_t, const auto&, uint32_t) {});
    }
    // Starts to bring keys (part 0) or values (part 1) of the span that begins at `first`, where there is
    // one.
    DEVICE void start(Shared& shared, uint32_t part, uint32_t first) {
        if (first < end)
            start_copy<D>(vectors(part, first), p.kv.stride, end - first,
                part == 0 ? shared.keys : shared.values);
        cp_async_commit();
    }
    // What has been brought but for copies goes to shared memory.
    DEVICE void arrive(Shared&, uint32_t) {}
    // Sums over the warp's elements, of which those of all elements become scores.
    template <class Sums>
    DEVICE void products(const Shared& shared, const WarpTask<D>& warp, Sums& sums) const {
        products_of_halves<D>(shared, warp, sums);
    }
    template <class Sums>
    DEVICE void scores(const Shared& shared, const WarpTask<D>& warp, Sums& sums) const {
        scores_of_halves<D>(shared, warp, sums);
    }
    // The value of position `at` as it is in the cache.
    DEVICE const uint16_t* value(uint32_t at) const { return vectors(1, at); }
    // What elements of the value of position `at` of the span count, from `elem` on, and the exponent of the
    // largest of that.
    DEVICE float step(const Shared&, uint32_t, uint32_t) const { return 1.0f; }
    DEVICE float exponent(const Shared&, uint32_t) const { return 0.0f; }
    // Undoes the transform of vectors.
    DEVICE void transform_back(Vector&) const {}
};

static_assert(sizeof(HalvesSource<64>::Shared) <= ATTEND_MMA_SHARED_BYTES_64, "the host asks for less");
static_assert(sizeof(HalvesSource<128>::Shared) <= ATTEND_MMA_SHARED_BYTES_128, "the host asks for less");
static_assert(sizeof(HalvesSource<256>::Shared) <= ATTEND_MMA_SHARED_BYTES_256, "the host asks for less");

// A span's weights as products with values take them, times what elements of the values count from `elem` on:
// rows `quartet` and `quartet + 8` of 8 columns, then of the next 8.
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
    // Of the tile's rows, the first one sees most before it and least ahead, and the last one the reverse.
    uint32_t before = first_seen(row.pos, p.common.window) / kSpan, last_pos = row.pos + tile.rows - 1;
    task.text_end = p.common.ahead == 0 ? last_pos : p.common.texts[tile.first].end;
    task.all_from = first_seen(last_pos, p.common.window);
    uint32_t all_end = last_seen(row.pos, p.common.ahead, task.text_end) + 1;
    task.all_end = all_end;
    uint32_t n_positions = last_seen(last_pos, p.common.ahead, task.text_end) + 1;
    uint32_t n_spans = (n_positions + kSpan - 1) / kSpan - before;
    uint32_t spans = (n_spans + most_splits - 1) / most_splits;
    spans = spans > kLeastPositions / kSpan ? spans : kLeastPositions / kSpan;
    task.splits = (n_spans + spans - 1) / spans;
    task.split = blockIdx.y % most_splits;
    if (task.split >= task.splits) return;
    // Positions of this split.
    uint32_t begin = (before + task.split * spans) * kSpan, end = begin + spans * kSpan;
    if (end > n_positions) end = n_positions;

    using Shared = typename Source::Shared;
    static_assert(Shape::kVectors * (2 + D) * 4 <= 2 * sizeof(Shared::high), "a part does not fit");
    Shared& shared = *reinterpret_cast<Shared*>(shared_memory());
    Source source(p, row, end);
    // Behind the vectors, and the keys and values of positions that nobody asks for.
    for (uint32_t at = threadIdx.x; at < kSpan * kPitch<D>; at += blockDim.x)
        shared.keys[at] = shared.values[at] = 0;
    if (threadIdx.x < kSpan) shared.broken[threadIdx.x] = 0;
    if (threadIdx.x == 0) shared.task = task;
    __syncthreads();
    source.start(shared, 0, begin);
    source.start(shared, 1, begin);
    source.load_queries(shared, task);
    __syncthreads();

    // Of products, this lane has rows `lane / 4` and `lane / 4 + 8` of its warp's, and of each span columns 2
    // member + {0, 1}.
    WarpTask<D> warp(threadIdx.x);
    float sum[2] = {}, largest[2] = {-INFINITY, -INFINITY}, out[kOut][4] = {};

    for (uint32_t first = begin; first < end; first += kSpan) {
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
        source.scores(shared, warp, scores);
        source.start(shared, 0, first + kSpan);
        // Among 128 elements there is no register for it.
        uint32_t seen_end = D == 128 ? shared.task.all_end : all_end;
        bool cut = first + kSpan > seen_end || first < shared.task.all_from;
        if (Source::kMayBreak && cut) {
            find_broken<D>(shared);
            __syncthreads();
        }
        if (cut) {
            // Positions of rows are not kept in registers meanwhile.
            uint32_t thread = recomputed(threadIdx.x),
                vector = WarpTask<D>(thread).first_vector + thread % kWarpSize / 4;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t pos = shared.task.pos + (vector + 8 * half) / shared.task.heads;
                uint32_t from = first_seen(pos, p.common.window),
                    behind = last_seen(pos, p.common.ahead, shared.task.text_end) - from;
#pragma unroll
                for (uint32_t i = 0; i < 2 * kTiles; i++) {
                    uint32_t at = first + 8 * (i / 2) + thread % 4 * 2 + i % 2;
                    if (at - from > behind) scores[i / 2][2 * half + i % 2] = -INFINITY;
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
        // Weights come times 2^14, so that even small ones are normal halves, and where values count
        // something relative to the largest product with its power of two, as in attend_row.cuh. A row that
        // has seen nothing yet has weights of 0.
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

    // Of a tile without splits the part stays here, where the queries were.
    float* of_block = reinterpret_cast<float*>(shared.high);
    const TileTask& done = shared.task;
    float* part = done.splits > 1 ? done.part<D>(p, done.split) : of_block;
#pragma unroll
    for (int half = 0; half < 2; half++) sum[half] = reduce_lanes<Sum>(sum[half], 4);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        // Not kept in registers meanwhile.
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
