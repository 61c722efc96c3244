// Linear layers on tensor cores for several rows of activations: int8 mma.sync m16n8k32.
//
// A tile is the weight rows of a block's warps, 16 each, times up to MMA_ROWS batch rows, which an earlier
// kernel has quantised (stage/quantize.cuh). Its columns are processed in spans of MMA_INTS_COLS: weights are
// loaded to registers two spans ahead, and activations to one of MMA_INTS_STAGES stages in shared memory. The
// spans of all tiles are divided evenly among the blocks, one contiguous range each, so blocks differ by at
// most one span for any shape (stream-K). If several blocks share a tile, all but the last to arrive store
// their sums, and the last one adds them up. The sums are integers, so the result does not depend on the
// order. Types with a scale per block of weights have float sums: their tiles are not shared.
//
// The columns of one mma step can be any 32, as long as both operands agree, so weights are used in the
// file's layout: a lane's 16-byte chunk is 4 words of 4 groups, and each word, shifted and masked for a
// group, is an operand; the activations of that group and word are one word of a plane (lib/input.cuh). 4
// neighbouring lanes take 4 neighbouring chunks, which are a span, and 8 such quartets take 8 rows. A scale
// per block of 256 covers these four chunks: the integer sums are converted to float there.
//
// The pitch of activation rows is an odd number of 64 bytes, so that reads by 8 lanes of two rows hit
// different banks.
//
// Grid: x = share of the spans. Reads W once per MMA_ROWS batch rows. Tasks are those of lib/linear.cuh, with
// 16 slots: rows 0 to 7 of a set are the first half, rows 8 to 15 the second. `arrived` must be 0.
#pragma once

#include "linear_halves.cuh"
#include "parts.cuh"

constexpr uint32_t kMmaWarps = LINEAR_THREADS / kWarpSize, kMmaTiles = MMA_ROWS / 8;

// A span in shared memory: activations of four chunks in planes as in lib/input.cuh, after each row the sums
// of its chunks, then the quantisation and the StepRow of each row.
struct SpanOfActs {
    uint8_t rows[MMA_ROWS * MMA_INTS_PITCH];
    RowQuant quants[MMA_ROWS];
    StepRow step_rows[MMA_ROWS];
};
static_assert(LINEAR_HEADER_BYTES + MMA_INTS_STAGES * sizeof(SpanOfActs) == MMA_INTS_SHARED_BYTES,
    "the host asks for as much");

// Order of spans: columns of a tile first, then batch rows, then weight rows.
struct SpanAt {
    uint32_t tile, span;

    DEVICE SpanAt(uint32_t at, uint32_t spans) : tile(at / spans), span(at % spans) {}
    DEVICE void go_on(uint32_t spans) {
        if (++span == spans) {
            span = 0;
            tile++;
        }
    }
};

// Distribution of spans to blocks, in units of `whole` spans.
struct Shares {
    uint32_t each, more, whole;

    DEVICE Shares(uint32_t n, uint32_t blocks, uint32_t whole)
        : each(n / whole / blocks), more(n / whole % blocks), whole(whole) {}
    DEVICE uint32_t begin(uint32_t block) const {
        return (block * each + (block < more ? block : more)) * whole;
    }
    // Block that owns a span.
    DEVICE uint32_t owner(uint32_t at) const {
        uint32_t longer = more * (each + 1);
        at /= whole;
        return at < longer ? at / (each + 1) : more + (at - longer) / each;
    }
};

// Sums of a warp's 16 weight rows with a tile's batch rows.
template <class T>
struct TileSums {
    int32_t ints[kMmaTiles][4];
    // Sums multiplied by block scales, for types that have them.
    float scaled[kMmaTiles][4];

    DEVICE void clear() {
#pragma unroll
        for (uint32_t i = 0; i < 4 * kMmaTiles; i++) {
            ints[i / 4][i % 4] = 0;
            scaled[i / 4][i % 4] = 0.0f;
        }
    }
    DEVICE typename T::Acc of(uint32_t tile, int i) const {
        if constexpr (T::kChunkSums) {
            return scaled[tile][i];
        } else {
            return ints[tile][i];
        }
    }

    // Adds the products with a lane's chunks of the upper and the lower eight weight rows.
    DEVICE void add(const uint4 (&words)[2], const SpanOfActs& acts, uint32_t n) {
        uint32_t quartet = threadIdx.x % kWarpSize / 4, member = threadIdx.x % 4;
        uint32_t upper[4] = {words[0].x, words[0].y, words[0].z, words[0].w};
        uint32_t lower[4] = {words[1].x, words[1].y, words[1].z, words[1].w};
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            uint32_t a[4][4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                a[i][0] = T::codes(upper[i], 2 * pair);
                a[i][1] = T::codes(lower[i], 2 * pair);
                a[i][2] = T::codes(upper[i], 2 * pair + 1);
                a[i][3] = T::codes(lower[i], 2 * pair + 1);
            }
#pragma unroll
            for (uint32_t tile = 0; tile < kMmaTiles; tile++) {
                if (8 * tile >= n) break;
                const uint8_t* row = acts.rows + (8 * tile + quartet) * MMA_INTS_PITCH + member * 16;
                uint4 even = load16(row + 2 * pair * 64), odd = load16(row + (2 * pair + 1) * 64);
                uint32_t b[4][2] = {{even.x, odd.x}, {even.y, odd.y}, {even.z, odd.z}, {even.w, odd.w}};
#pragma unroll
                for (int i = 0; i < 4; i++) mma_s8_16x8x32(ints[tile], a[i], b[i]);
            }
        }
    }

    // Converts the sums of a block of 256 to float, with its scales.
    DEVICE void scale(const float (&scales)[2], const SpanOfActs& acts, uint32_t n) {
#pragma unroll
        for (uint32_t tile = 0; tile < kMmaTiles; tile++) {
            if (8 * tile >= n) break;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t m = 8 * tile + 2 * (threadIdx.x % 4) + i;
                uint4 of_chunks = load16(acts.rows + m * MMA_INTS_PITCH + MMA_INTS_COLS);
                int32_t less = static_cast<int32_t>(of_chunks.x + of_chunks.y + of_chunks.z + of_chunks.w);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int at = 2 * half + i;
                    float sum = static_cast<float>(ints[tile][at] - less);
                    scaled[tile][at] = fmaf(scales[half], sum, scaled[tile][at]);
                    ints[tile][at] = 0;
                }
            }
        }
    }

    // Address of the stored sums of n batch rows: each thread reads back what the same thread of another
    // block wrote.
    DEVICE static int4* place(int32_t* sums, uint32_t place, uint32_t tile) {
        return reinterpret_cast<int4*>(sums) + (place * kMmaTiles + tile) * LINEAR_THREADS + threadIdx.x;
    }
    DEVICE void leave(int32_t* sums, uint32_t at, uint32_t n) const {
#pragma unroll
        for (uint32_t tile = 0; tile < kMmaTiles; tile++) {
            if (8 * tile >= n) break;
            const int32_t(&v)[4] = ints[tile];
            *place(sums, at, tile) = make_int4(v[0], v[1], v[2], v[3]);
        }
    }

    // Adds the sums stored by blocks `first` to `last` except this one, several loads at a time.
    // place_of(block) is the index of a block's storage.
    template <class PlaceOf>
    DEVICE void take(int32_t* sums, uint32_t first, uint32_t last, uint32_t n, PlaceOf place_of) {
        constexpr uint32_t kAtOnce = 5;
#pragma unroll
        for (uint32_t tile = 0; tile < kMmaTiles; tile++) {
            if (8 * tile >= n) break;
#pragma unroll 1
            for (uint32_t block = first; block <= last; block += kAtOnce) {
                int4 v[kAtOnce];
#pragma unroll
                for (uint32_t i = 0; i < kAtOnce; i++) {
                    bool of_other = block + i <= last && block + i != blockIdx.x;
                    v[i] = of_other ? *place(sums, place_of(block + i), tile) : make_int4(0, 0, 0, 0);
                }
#pragma unroll
                for (uint32_t i = 0; i < kAtOnce; i++) {
                    ints[tile][0] += v[i].x;
                    ints[tile][1] += v[i].y;
                    ints[tile][2] += v[i].z;
                    ints[tile][3] += v[i].w;
                }
            }
        }
    }
};

template <class T, class Task>
DEVICE void run_linear_ints(
    const StepTables& step, const InputParams& in, uint32_t chunks, const Task& task
) {
    static_assert(T::kInts && T::kElems * 4 == MMA_INTS_COLS, "a span is four chunks");
    SpanOfActs* stages = reinterpret_cast<SpanOfActs*>(shared_memory() + LINEAR_HEADER_BYTES);
    uint32_t n_rows = in.of_outputs ? step.counts->outputs : step.counts->rows;
    uint32_t lane = threadIdx.x % kWarpSize, quartet = lane / 4, member = lane % 4;
    uint32_t units = task.units(), spans = (chunks + 3) / 4;
    uint32_t tiles_of_rows = (n_rows + MMA_ROWS - 1) / MMA_ROWS;
    uint32_t n = (units + kMmaWarps - 1) / kMmaWarps * tiles_of_rows * spans;
    Shares shares(n, gridDim.x, T::kChunkSums ? spans : 1);
    uint32_t begin = shares.begin(blockIdx.x), end = shares.begin(blockIdx.x + 1);
    auto unit_of = [&](uint32_t tile) { return tile / tiles_of_rows * kMmaWarps + threadIdx.x / kWarpSize; };
    auto rows_of = [&](uint32_t tile) {
        uint32_t left = n_rows - tile % tiles_of_rows * MMA_ROWS;
        return left < MMA_ROWS ? left : MMA_ROWS;
    };

    // A lane's chunks of a span, and their scales if the type has them: of rows `quartet` and `quartet + 8`
    // of the warp's set.
    struct Weights {
        uint4 words[2];
        float scales[2];
    };
    SpanAt of_weights(begin, spans), of_acts = of_weights, now = of_weights;
    uint32_t left = end - begin, tile_of_rows = ~0u;
    typename T::Row rows[2] = {};
    auto load = [&](Weights& to) {
        if (of_weights.tile * spans + of_weights.span >= end) return;
        if (of_weights.tile != tile_of_rows) {
            tile_of_rows = of_weights.tile;
            uint32_t unit = unit_of(tile_of_rows);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                WeightRow at = unit < units ? task.row(unit, quartet + 8 * half) : WeightRow{};
                rows[half] = at.exists() ? T::row(task.weight(at.weight), at.row) : typename T::Row{};
            }
        }
        uint32_t chunk = 4 * of_weights.span + member;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            bool exists = rows[half] && chunk < chunks;
            // Missing weights are 0, so their activations do not matter.
            to.words[half] = exists ? T::load_codes(rows[half], chunk) : make_uint4(0, 0, 0, 0);
            if constexpr (T::kChunkSums) to.scales[half] = exists ? T::scale(rows[half], chunk) : 0.0f;
        }
        of_weights.go_on(spans);
    };
    auto bring = [&](uint32_t stage) {
        if (of_acts.tile * spans + of_acts.span < end) {
            SpanOfActs& to = stages[stage];
            uint32_t first = of_acts.tile % tiles_of_rows * MMA_ROWS, base = 4 * of_acts.span;
            const uint8_t* from = in.rounded.rows + uint64_t(first) * in.row_bytes;
            uint32_t n = rows_of(of_acts.tile);
            // 16 threads per row: one chunk of a plane each.
            uint32_t plane = threadIdx.x / 4 % 4, chunk = base + threadIdx.x % 4;
#pragma unroll
            for (uint32_t half = 0; half < MMA_ROWS * 16 / LINEAR_THREADS; half++) {
                uint32_t m = threadIdx.x / 16 + half * (LINEAR_THREADS / 16);
                if (m < n && chunk < chunks)
                    cp_async16(to.rows + m * MMA_INTS_PITCH + threadIdx.x % 16 * 16,
                        from + uint64_t(m) * in.row_bytes + (plane * chunks + chunk) * 16);
            }
            // StepRow and RowQuant (two at a time) of the tile's rows; and the sums of chunks.
            if (threadIdx.x < n) {
                cp_async16(to.step_rows + threadIdx.x, step.rows + first + threadIdx.x);
            } else if (threadIdx.x >= LINEAR_THREADS - MMA_ROWS / 2) {
                uint32_t two = 2 * (threadIdx.x - (LINEAR_THREADS - MMA_ROWS / 2));
                cp_async16(to.quants + two, in.rounded.quants + first + two);
            }
            if constexpr (T::kChunkSums) {
                if (threadIdx.x < n)
                    cp_async16(to.rows + threadIdx.x * MMA_INTS_PITCH + MMA_INTS_COLS,
                        from + uint64_t(threadIdx.x) * in.row_bytes + chunks * T::kElems + base * 4);
            }
            of_acts.go_on(spans);
        }
        cp_async_commit();
    };

    TileSums<T> sums;
    sums.clear();
    // Merges the block's sums of a tile. True if this block has the total and finishes the tile.
    auto complete = [&](uint32_t tile) {
        if constexpr (T::kChunkSums) return true;
        uint32_t first = tile * spans;
        uint32_t first_block = shares.owner(first), last_block = shares.owner(first + spans - 1);
        if (first_block == last_block) return true;
        // A block can hold the end of one tile and the beginning of another.
        auto place_of = [&](uint32_t block) { return 2 * block + (block == first_block); };
        uint32_t n = rows_of(tile);
        sums.leave(in.rounded.sums, place_of(blockIdx.x), n);
        uint32_t* word = reinterpret_cast<uint32_t*>(shared_memory());
        if (!comes_last(in.rounded.arrived + tile, last_block - first_block + 1, word)) return false;
        sums.take(in.rounded.sums, first_block, last_block, n, place_of);
        return true;
    };
    auto finish = [&](uint32_t tile, const SpanOfActs& acts) {
        uint32_t unit = unit_of(tile), first = tile % tiles_of_rows * MMA_ROWS, n = rows_of(tile);
        if (unit >= units) return;
        WeightRow at[2];
#pragma unroll
        for (int half = 0; half < 2; half++) at[half] = task.row(unit, quartet + 8 * half);
        float scales[2] = {row_scale<T>(task, at[0]), row_scale<T>(task, at[1])};
#pragma unroll
        for (uint32_t of_rows = 0; of_rows < kMmaTiles; of_rows++) {
            if (8 * of_rows >= n) break;
            // Loads are issued before the first store, because the compiler must assume that they alias.
            typename Task::Around around[2][2] = {};
            uint32_t rows[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t m = 8 * of_rows + 2 * member + i;
                rows[i] = m < n ? m : n - 1;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    if (m < n && at[half].exists())
                        around[i][half] = task.around(unit, quartet + 8 * half, first + m, acts.step_rows[m]);
                }
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (8 * of_rows + 2 * member + i >= n) continue;
                RowQuant quant = acts.quants[rows[i]];
                float upper = finished<T>(task, at[0], sums.of(of_rows, i), quant, scales[0]);
                float lower = finished<T>(task, at[1], sums.of(of_rows, 2 + i), quant, scales[1]);
                uint32_t m = first + rows[i];
                if (at[0].exists()) task.finish(unit, quartet, m, upper, lower, around[i][0]);
                if (at[1].exists()) task.finish(unit, quartet + 8, m, lower, upper, around[i][1]);
            }
        }
    };

    Weights even, odd;
    load(even);
    load(odd);
    let_next_kernel_start();
    wait_for_previous_kernel();
    if (left == 0) return;
#pragma unroll 1
    for (uint32_t stage = 0; stage + 1 < MMA_INTS_STAGES; stage++) bring(stage);
    uint32_t stage = 0;
    auto take = [&](Weights& weights) {
        cp_async_wait<MMA_INTS_STAGES - 2>();
        __syncthreads();
        // All warps are done with the stage that is refilled here.
        bring((stage + MMA_INTS_STAGES - 1) % MMA_INTS_STAGES);
        const SpanOfActs& acts = stages[stage];
        uint32_t n = rows_of(now.tile);
        sums.add(weights.words, acts, n);
        if constexpr (T::kChunkSums) sums.scale(weights.scales, acts, n);
        load(weights);
        left--;
        if (now.span == spans - 1 || left == 0) {
            if (complete(now.tile)) finish(now.tile, acts);
            sums.clear();
        }
        now.go_on(spans);
        stage = (stage + 1) % MMA_INTS_STAGES;
    };
#pragma unroll 1
    while (true) {
        take(even);
        if (left == 0) break;
        take(odd);
        if (left == 0) break;
    }
}

template <class T, class Task>
DEVICE void run_linear_mma(const StepTables& step, const InputParams& in, uint32_t chunks, const Task& task) {
    if constexpr (T::kInts) {
        run_linear_ints<T>(step, in, chunks, task);
    } else {
        run_linear_halves<T>(step, in, chunks, task);
    }
}
