// Attend for many rows of one sequence: out[r] = softmax(scale q[r] . K[first ..= pos]) V, on tensor cores.
//
// Flash attention over a cache of halves. A block owns a tile of the step, up to ATTEND_MMA_ROWS / heads
// neighbouring rows at neighbouring positions of one sequence, and one KV head with up to `heads` of its
// query heads: x = KV head and tile of query heads, y = tile of rows, the last (and longest) first, and split
// of its positions: where tiles are few, several blocks take some spans each, and the one that comes last
// merges what they leave in `partial`. These query vectors, row by row, are the rows of the products; each of
// the block's 4 warps owns 16. So keys and values are read once for all of them, kSpan positions at a time,
// through shared memory: keys of the next span are on their way while this one's values are multiplied, and
// the other way round.
//
// The products are of halves with float sums (mma m16n8k16), and no worse than float products: a query vector
// times a power of two, and a weight times 2^14, are each two halves, which keep 22 bits, and are multiplied
// one after the other. The rescaling is exact. Weighted values are summed by tensor cores over one span, and
// spans as floats: tensor cores cut off what an accumulator has no place for, always towards zero, and over
// thousands of positions that would add up.
//
// Spans before the windows of all rows of a tile are not read, and positions that lie behind its last row are
// zeros in shared memory. Where rows see different parts of a span, a weight of 0 must not meet a value that
// is no finite number: such values become 0 there, and rows that do see them add them one by one.
//
// The frame is a template over a source, which has keys and values brought to shared memory and makes scores
// of them: here of a cache of halves, in attend_mma_codes.cuh of one of codes.
//
// Reads 2 head_dim halves of each position, KV head and tile. Needs head_dim <= D, zeros behind each vector,
// `arrived` 0.
#pragma once

#include "../lib/halves.cuh"
#include "../lib/rotate.cuh"
#include "attend.cuh"

// Positions of a page that are multiplied at a time.
constexpr int kSpan = 32;

// Spans that a split has at least: fewer would cost less than the merging of their parts.
constexpr uint32_t kLeastSpans = 4;

template <int D>
struct AttendShared {
    // Of query vectors times a power of two: halves, and the halves nearest to what these lack.
    uint16_t high[ATTEND_MMA_ROWS * kPitch<D>], low[ATTEND_MMA_ROWS * kPitch<D>];
    uint16_t keys[kSpan * kPitch<D>], values[kSpan * kPitch<D>];
    // One over that power of two.
    float unscale[ATTEND_MMA_ROWS];
    // Whether a position's value has an element that is no finite number.
    uint32_t broken[kSpan];
};
static_assert(sizeof(AttendShared<64>) <= ATTEND_MMA_SHARED_BYTES_64, "the host asks for less");
static_assert(sizeof(AttendShared<128>) <= ATTEND_MMA_SHARED_BYTES_128, "the host asks for less");

// Query vectors that a warp has on their way at a time.
constexpr uint32_t kQueriesAtOnce = 4;

// Brings the query vectors to shared memory, each by a warp; vectors that the tile lacks are 0. Calls keep(i,
// vector, largest) for each as well: its number, what a lane has of it, elements lane + 32 j, and the bits of
// its largest magnitude.
template <int D, class Params, class Keep>
DEVICE void load_queries(
    const Params& p, AttendShared<D>& shared, uint32_t first_row, uint32_t n, uint32_t heads,
    uint32_t first_head, Keep keep
) {
    uint32_t lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize, head_dim = p.kv.head_dim;
    const float factor = p.common.scale * 1.4426950408889634f;
    constexpr uint32_t kOwn = D / kWarpSize;
#pragma unroll 1
    for (uint32_t base = 16 * warp; base < 16 * warp + 16; base += kQueriesAtOnce) {
        float x[kQueriesAtOnce][kOwn];
#pragma unroll
        for (uint32_t v = 0; v < kQueriesAtOnce; v++) {
            uint32_t i = base + v, row = first_row + i / heads, head = first_head + i % heads;
            const float* q =
                p.common.q + (uint64_t(row) * p.kv.n_kv_heads * p.common.group + head) * head_dim;
#pragma unroll
            for (uint32_t j = 0; j < kOwn; j++) {
                uint32_t e = lane + kWarpSize * j;
                x[v][j] = i < n && e < head_dim ? q[e] : 0.0f;
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
    for (uint32_t at = threadIdx.x; at < kSpan * pieces; at += blockDim.x) {
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

constexpr int kTiles = kSpan / 8;

// Scores of a span whose keys are halves in shared memory, for the 16 query vectors from `first_vector` on: a
// lane's as in attend_tiles.
template <int D>
DEVICE void scores_of_halves(
    const AttendShared<D>& shared, uint32_t first_vector, float (&scores)[kTiles][4]
) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t high[4], low[4];
        load_matrices<false>(high, shared.high + first_vector * kPitch<D> + 16 * k + block_at(kPitch<D>));
        load_matrices<false>(low, shared.low + first_vector * kPitch<D> + 16 * k + block_at(kPitch<D>));
#pragma unroll
        for (int two = 0; two < kTiles / 2; two++) {
            uint32_t keys[4];
            load_matrices<false>(keys, shared.keys + 16 * two * kPitch<D> + 16 * k + column_at(kPitch<D>));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t b[2] = {keys[2 * i], keys[2 * i + 1]};
                mma_f16_16x8x16(scores[2 * two + i], low, b);
                mma_f16_16x8x16(scores[2 * two + i], high, b);
            }
        }
    }
    uint32_t quartet = threadIdx.x % kWarpSize / 4;
    float unscale[2] = {shared.unscale[first_vector + quartet], shared.unscale[first_vector + quartet + 8]};
#pragma unroll
    for (int t = 0; t < kTiles; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) scores[t][i] *= unscale[i / 2];
    }
}

// Finds values that are no finite numbers, and makes them 0.
template <int D>
DEVICE void find_broken(AttendShared<D>& shared) {
    for (uint32_t at = threadIdx.x; at < kSpan * (D / 2); at += blockDim.x) {
        uint32_t pos = at / (D / 2);
        uint32_t* word = reinterpret_cast<uint32_t*>(shared.values + pos * kPitch<D>) + at % (D / 2);
        uint32_t bits = *word, kept = bits;
        if ((bits & 0x7c00u) == 0x7c00u) kept &= 0xffff0000u;
        if ((bits & 0x7c000000u) == 0x7c000000u) kept &= 0x0000ffffu;
        if (kept == bits) continue;
        *word = kept;
        shared.broken[pos] = 1;
    }
}

// Adds the values of position `at` of a span that are no finite numbers, which the products took for 0.
// `scores` and `out` are a lane's as in attend_tiles, `base` what scores are relative to.
template <int kOut>
DEVICE void add_broken(
    const AttendMmaParams& p, const uint16_t* values, uint32_t at, const float (&scores)[kTiles][4],
    const float (&base)[2], float (&out)[kOut][4]
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
        for (uint32_t i = 0; i < 2 * kOut; i++) {
            uint32_t elem = 8 * (i / 2) + 2 * member + i % 2;
            uint16_t bits = elem < p.kv.head_dim ? values[at * p.kv.stride + elem] : uint16_t(0);
            if ((bits & 0x7c00u) == 0x7c00u) out[i / 2][2 * half + i % 2] += weight * float_of_half(bits);
        }
    }
}

// A tile's share of the block: which tile, and which of its positions.
struct TileTask {
    uint32_t tile, split, splits, first, end;

    // Where the parts of its vectors lie.
    template <class Params>
    DEVICE float* part(const Params& p, uint32_t of_split, uint32_t vector) const {
        uint64_t block = (uint64_t(tile) * gridDim.x + blockIdx.x) * most_splits(p) + of_split;
        return p.common.partial + (block * ATTEND_MMA_ROWS + vector) * (2 + p.kv.head_dim);
    }
    template <class Params>
    DEVICE static uint32_t most_splits(const Params& p) {
        uint32_t most = p.blocks / (p.step.counts->tiles * gridDim.x);
        return most > 0 ? most : 1;
    }
};

// The weight of a head's sink, times 2^14 as others are.
DEVICE float tile_sink(float sink, float largest) {
    return sink_weight(sink, largest - 14.0f);
}

// Merges the parts of a tile's splits, which this block is the last to leave, and writes the result. A warp
// owns a vector.
template <class Source, class Params>
DEVICE void merge_splits(
    const Source& source, const Params& p, const TileTask& task, uint32_t n, uint32_t heads,
    uint32_t first_row, uint32_t first_head
) {
    uint32_t head_dim = p.kv.head_dim;
    for (uint32_t vector = threadIdx.x / kWarpSize; vector < n; vector += blockDim.x / kWarpSize) {
        float largest = -INFINITY, sum = 0.0f;
        for (uint32_t split = 0; split < task.splits; split++)
            largest = fmaxf(largest, *task.part(p, split, vector));
        Vector values = {};
        values.n = head_dim / kWarpSize;
        for (uint32_t split = 0; split < task.splits; split++) {
            const float* part = task.part(p, split, vector);
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
        if (p.common.sinks) sum += tile_sink(p.common.sinks[first_head + vector % heads], largest);
#pragma unroll
        for (uint32_t j = 0; j < kLaneElems; j++) values.x[j] /= sum;
        source.transform_back(values);
        uint64_t to_row = first_row + vector / heads;
        float* to = p.common.out +
            (to_row * p.kv.n_kv_heads * p.common.group + first_head + vector % heads) * head_dim;
#pragma unroll
        for (uint32_t j = 0; j < kLaneElems; j++) {
            if (Vector::elem(j) < head_dim) to[Vector::elem(j)] = values.x[j];
        }
    }
}

// A cache of halves, of which a tile reads one sequence and KV head, up to position `end`.
template <int D>
struct HalvesSource {
    using Shared = AttendShared<D>;
    // Whether values count what `step` says, and may be no finite numbers.
    static constexpr bool kSteps = false, kMayBreak = true;

    const AttendMmaParams& p;
    uint32_t seq, kv_head_at, end;

    DEVICE HalvesSource(const AttendMmaParams& p, const StepRow& row, uint32_t kv_head_at, uint32_t end)
        : p(p), seq(row.seq), kv_head_at(kv_head_at), end(end) {}

    DEVICE const uint16_t* vectors(uint32_t part, uint32_t first) const {
        const uint8_t* of_head = kv_head(p.kv, page_of(p.step, seq, first), part, kv_head_at);
        return reinterpret_cast<const uint16_t*>(of_head) + first % PAGE_POSITIONS * p.kv.stride;
    }
    DEVICE void load_queries(
        Shared& shared, uint32_t first_row, uint32_t n, uint32_t heads, uint32_t first_head
    ) const {
        ::load_queries<D>(p, shared, first_row, n, heads, first_head, [](uint32_t, const auto&, uint32_t) {});
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
    DEVICE void scores(const Shared& shared, uint32_t first_vector, float (&scores)[kTiles][4]) const {
        scores_of_halves<D>(shared, first_vector, scores);
    }
    // What the value of position `at` of the span counts, and the exponent of that.
    DEVICE float step(const Shared&, uint32_t) const { return 1.0f; }
    DEVICE float exponent(const Shared&, uint32_t) const { return 0.0f; }
    // Undoes the transform of vectors.
    template <class Result>
    DEVICE void transform_back(Result&) const {}
};

template <int D, class Source, class Params>
DEVICE void attend_tiles(const Params& p) {
    constexpr int kOut = D / 8;
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t n_tiles = p.step.counts->tiles;
    if (n_tiles == 0) return;
    TileTask task;
    uint32_t most_splits = TileTask::most_splits(p);
    if (blockIdx.y >= n_tiles * most_splits) return;
    task.tile = n_tiles - 1 - blockIdx.y / most_splits;
    StepTile tile = p.tiles[task.tile];
    StepRow row = p.step.rows[tile.first];
    uint32_t kv_head_at = blockIdx.x / p.head_tiles, head_tile = blockIdx.x % p.head_tiles;
    uint32_t heads =
        p.common.group - head_tile * p.heads < p.heads ? p.common.group - head_tile * p.heads : p.heads;
    uint32_t first_head = kv_head_at * p.common.group + head_tile * p.heads;
    // Of the tile's rows, the first one sees most before it, and the last one least.
    uint32_t before = first_seen(row.pos, p.window) / kSpan,
        all_see = first_seen(row.pos + tile.rows - 1, p.window);
    uint32_t n = tile.rows * heads, n_spans = (row.pos + tile.rows + kSpan - 1) / kSpan - before;
    uint32_t spans = (n_spans + most_splits - 1) / most_splits;
    spans = spans > kLeastSpans ? spans : kLeastSpans;
    task.splits = (n_spans + spans - 1) / spans;
    task.split = blockIdx.y % most_splits;
    if (task.split >= task.splits) return;
    task.first = (before + task.split * spans) * kSpan;
    task.end = task.first + spans * kSpan;
    if (task.end > row.pos + tile.rows) task.end = row.pos + tile.rows;
    uint32_t end = task.end;

    using Shared = typename Source::Shared;
    Shared& shared = *reinterpret_cast<Shared*>(shared_memory());
    Source source(p, row, kv_head_at, end);
    // Behind the vectors, and the keys and values of positions that nobody asks for.
    for (uint32_t at = threadIdx.x; at < kSpan * kPitch<D>; at += blockDim.x)
        shared.keys[at] = shared.values[at] = 0;
    if (threadIdx.x < kSpan) shared.broken[threadIdx.x] = 0;
    __syncthreads();
    source.start(shared, 0, task.first);
    source.start(shared, 1, task.first);
    source.load_queries(shared, tile.first, n, heads, first_head);
    __syncthreads();

    // This lane's rows of products: `quartet` and `quartet + 8` of its warp's, and of each span columns 2
    // member + {0, 1}.
    uint32_t lane = threadIdx.x % kWarpSize, quartet = lane / 4, member = lane % 4;
    uint32_t first_vector = threadIdx.x / kWarpSize * 16;
    uint32_t vector[2] = {first_vector + quartet, first_vector + quartet + 8}, pos[2];
    float sum[2] = {}, largest[2] = {-INFINITY, -INFINITY}, out[kOut][4] = {};
#pragma unroll
    for (int half = 0; half < 2; half++) pos[half] = row.pos + vector[half] / heads;

    for (uint32_t first = task.first; first < end; first += kSpan) {
        cp_async_wait<1>();
        source.arrive(shared, 0);
        __syncthreads();
        float scores[kTiles][4] = {};
        source.scores(shared, first_vector, scores);
        cp_async_wait<0>();
        source.arrive(shared, 1);
        __syncthreads();
        source.start(shared, 0, first + kSpan);
        bool cut = first + kSpan > row.pos + 1 || first < all_see;
        if (Source::kMayBreak && cut) {
            find_broken<D>(shared);
            __syncthreads();
        }

        float highest[2] = {largest[0], largest[1]};
#pragma unroll
        for (int t = 0; t < kTiles; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t at = 8 * t + 2 * member + i % 2;
                uint32_t last = pos[i / 2];
                if (cut && (first + at > last || last - (first + at) >= p.window)) scores[t][i] = -INFINITY;
                float product = scores[t][i];
                if (Source::kSteps) product += source.exponent(shared, at);
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
                const uint16_t* of_span = source.vectors(1, first);
#pragma unroll 1
                for (uint32_t at = 0; at < kSpan; at++) {
                    if (shared.broken[at] != 0) add_broken(p, of_span, at, scores, base, out);
                }
            }
        }
        uint32_t high[kTiles / 2][4], low[kTiles / 2][4];
#pragma unroll
        for (int two = 0; two < kTiles / 2; two++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                // Rows `quartet` and `quartet + 8` of the first 8 columns, then of the others.
                const float* from = scores[2 * two + i / 2];
                TwoHalves even, odd;
                float a = exp2_fast(from[2 * (i % 2)] - base[i % 2] + 14.0f);
                float b = exp2_fast(from[2 * (i % 2) + 1] - base[i % 2] + 14.0f);
                sum[i % 2] += a + b;
                if (Source::kSteps) {
                    uint32_t at = 8 * (2 * two + i / 2) + 2 * member;
                    a *= source.step(shared, at);
                    b *= source.step(shared, at + 1);
                }
                even = TwoHalves::of(a);
                odd = TwoHalves::of(b);
                high[two][i] = even.high | static_cast<uint32_t>(odd.high) << 16;
                low[two][i] = even.low | static_cast<uint32_t>(odd.low) << 16;
            }
        }
#pragma unroll
        for (int t = 0; t < kOut; t += 2) {
            float of_span[2][4] = {};
#pragma unroll
            for (int two = 0; two < kTiles / 2; two++) {
                uint32_t values[4];
                load_matrices<true>(values,
                    shared.values + 16 * two * kPitch<D> + 8 * t + block_at(kPitch<D>));
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

#pragma unroll
    for (int half = 0; half < 2; half++) sum[half] = reduce_lanes<Sum>(sum[half], 4);
    if (task.splits == 1) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (p.common.sinks && vector[half] < n)
                sum[half] += tile_sink(p.common.sinks[first_head + vector[half] % heads], largest[half]);
        }
#pragma unroll
        for (int t = 0; t < kOut; t++) {
#pragma unroll
            for (int i = 0; i < 4; i++) out[t][i] /= sum[i / 2];
        }
        source.transform_back(out);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (vector[half] >= n) continue;
        uint64_t to_row = tile.first + vector[half] / heads;
        float* to = p.common.out +
            (to_row * p.kv.n_kv_heads * p.common.group + first_head + vector[half] % heads) * p.kv.head_dim;
        if (task.splits > 1) {
            to = task.part(p, task.split, vector[half]);
            if (member == 0) {
                to[0] = largest[half];
                to[1] = sum[half];
            }
            to += 2;
        }
#pragma unroll
        for (int t = 0; t < kOut; t++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t elem = 8 * t + 2 * member + i;
                if (elem < p.kv.head_dim) to[elem] = out[t][2 * half + i];
            }
        }
    }
    if (task.splits == 1) return;

    // The block that comes last sees what all others have left.
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t* arrived = p.common.arrived + task.tile * gridDim.x + blockIdx.x;
        shared.broken[0] = atomicAdd(arrived, 1u) == task.splits - 1;
        if (shared.broken[0]) *arrived = 0;
    }
    __syncthreads();
    if (!shared.broken[0]) return;
    __threadfence();
    merge_splits(source, p, task, n, heads, tile.first, first_head);
}
