// The products of a linear kernel for many rows of activations, on tensor cores: int8 mma.sync m16n8k32.
//
// A warp owns a unit of kSets sets of 16 rows of weights, and all rows of activations that the block has in
// shared memory, 8 at a time. Which columns a step of 32 multiplies is free as long as both operands agree,
// so that weights come straight from the file's layout: a lane's 16-byte chunk is 4 words of 4 groups, and
// each word, shifted and masked for one group, is an operand as it stands; the activations of that group and
// word are one word of a plane (lib/input.cuh). 4 neighbouring lanes take 4 neighbouring chunks, and 8 such
// quartets take 8 rows.
//
// A scale a block of 256 is one of four chunks, which a step of four lanes takes whole: the sums of integers
// become floats there.
//
// Rows of activations lie an odd number of 64 bytes apart, so that what 8 lanes read of two of them is in
// different banks.
//
// x = share of the units, y = tile of in.tile_rows rows of the step. Reads W once for each tile. Tasks are
// those of lib/linear.cuh, with 16 slots: rows 0 to 7 of a set are the first half, rows 8 to 15 the other.
#pragma once

#include "linear_halves.cuh"

template <class T, class Task>
DEVICE void run_linear_ints(
    const StepTables& step, const InputParams& in, uint32_t chunks, const Task& task
) {
    static_assert(T::kInts, "int8 products");
    constexpr int kSets = T::kSets, kTiles = 4, kWords = 4;
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t n_rows = in.of_outputs ? step.counts->outputs : step.counts->rows,
        first = blockIdx.y * in.tile_rows;
    if (first >= n_rows) return;
    uint32_t n = n_rows - first < in.tile_rows ? n_rows - first : in.tile_rows;
    load_rows<T, LINEAR_ROWS, kMmaQuads>(step, in, chunks, first, n, in.row_bytes);
    const uint8_t* acts = shared_memory() + LINEAR_HEADER_BYTES;

    uint32_t lane = threadIdx.x % kWarpSize, quartet = lane / 4, member = lane % 4;
    uint32_t warps = blockDim.x / kWarpSize, units = task.units();
    uint32_t stride = gridDim.x * warps * kSets;
    for (uint32_t unit = (blockIdx.x * warps + threadIdx.x / kWarpSize) * kSets; unit < units;
         unit += stride) {
        int32_t sums[kSets][kTiles][4] = {};
        // With the scales of blocks, where there are such.
        float scaled[kSets][kTiles][4] = {};
        // Each set's rows `quartet` and `quartet + 8`; null if the row is missing.
        typename T::Row rows[kSets][2];
#pragma unroll
        for (int set = 0; set < kSets; set++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                WeightRow at =
                    unit + set < units ? task.row(unit + set, quartet + 8 * half) : WeightRow{};
                rows[set][half] = at.exists() ? T::row(task.weight(at.weight), at.row) : typename T::Row{};
            }
        }
        for (uint32_t base = 0; base < chunks; base += 4) {
            uint32_t chunk = base + member;
            uint32_t words[kSets][2][kWords] = {};
#pragma unroll
            for (int set = 0; set < kSets; set++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    if (!rows[set][half] || chunk >= chunks) continue;
                    uint4 w = T::load_codes(rows[set][half], chunk);
                    words[set][half][0] = w.x;
                    words[set][half][1] = w.y;
                    words[set][half][2] = w.z;
                    words[set][half][3] = w.w;
                }
            }
            // Weights beyond the last chunk are 0, so any activations will do.
            uint32_t of_acts = chunk < chunks ? chunk : chunks - 1;
            // Two groups at a time: unrolled, the operands of all four would not fit into registers.
#pragma unroll 1
            for (int pair = 0; pair < 2; pair++) {
#pragma unroll
                for (int tile = 0; tile < kTiles; tile++) {
                    if (8 * tile >= static_cast<int>(n)) break;
                    const uint8_t* row = acts + (8 * tile + quartet) * in.row_bytes;
                    uint4 even = load16(row + (2 * pair * chunks + of_acts) * 16);
                    uint4 odd = load16(row + ((2 * pair + 1) * chunks + of_acts) * 16);
                    uint32_t b[kWords][2] = {
                        {even.x, odd.x}, {even.y, odd.y}, {even.z, odd.z}, {even.w, odd.w}
                    };
#pragma unroll
                    for (int set = 0; set < kSets; set++) {
#pragma unroll
                        for (int i = 0; i < kWords; i++) {
                            uint32_t upper = words[set][0][i], lower = words[set][1][i];
                            uint32_t a[4] = {T::codes(upper, 2 * pair), T::codes(lower, 2 * pair),
                                             T::codes(upper, 2 * pair + 1), T::codes(lower, 2 * pair + 1)};
                            mma_s8_16x8x32(sums[set][tile], a, b[i]);
                        }
                    }
                }
            }
            if constexpr (T::kChunkSums) {
                float scales[kSets][2];
#pragma unroll
                for (int set = 0; set < kSets; set++) {
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        scales[set][half] = rows[set][half] ? T::scale(rows[set][half], base) : 0.0f;
                    }
                }
#pragma unroll
                for (int tile = 0; tile < kTiles; tile++) {
                    if (8 * tile >= static_cast<int>(n)) break;
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const uint8_t* row = acts + (8 * tile + 2 * member + i) * in.row_bytes;
                        uint4 of_chunks = load16(chunk_sums<T>(row, chunks) + base);
                        int32_t less =
                            static_cast<int32_t>(of_chunks.x + of_chunks.y + of_chunks.z + of_chunks.w);
#pragma unroll
                        for (int set = 0; set < kSets; set++) {
#pragma unroll
                            for (int half = 0; half < 2; half++) {
                                int at = 2 * half + i;
                                float sum = static_cast<float>(sums[set][tile][at] - less);
                                scaled[set][tile][at] = fmaf(scales[set][half], sum, scaled[set][tile][at]);
                                sums[set][tile][at] = 0;
                            }
                        }
                    }
                }
            }
        }
        auto sum_of = [&](int set, int tile, int i) {
            if constexpr (T::kChunkSums) {
                return scaled[set][tile][i];
            } else {
                return sums[set][tile][i];
            }
        };
#pragma unroll
        for (int set = 0; set < kSets; set++) {
            WeightRow at[2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                at[half] = rows[set][half] ? task.row(unit + set, quartet + 8 * half) : WeightRow{};
            }
#pragma unroll
            for (int tile = 0; tile < kTiles; tile++) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t m = 8 * tile + 2 * member + i;
                    if (m >= n) continue;
                    float upper = finished<T>(task, at[0], sum_of(set, tile, i), m);
                    float lower = finished<T>(task, at[1], sum_of(set, tile, 2 + i), m);
                    if (at[0].exists()) task.finish(unit + set, quartet, first + m, upper, lower);
                    if (at[1].exists()) task.finish(unit + set, quartet + 8, first + m, lower, upper);
                }
            }
        }
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
