// Linear layers on tensor cores for several rows of activations quantised by block: int8 mma.sync over the
// codes of weights.
//
// A tile is the weight rows of a block's warps, 16 each, times up to MMA_CODES_ROWS batch rows, which an
// earlier kernel has quantised (stage/quantize_blocks.cu). Columns are processed MMA_CODES_COLS at a time:
// activations are copied to one of MMA_CODES_STAGES stages in shared memory, and each warp's weights from
// their layout to registers, two blocks of QUANT_COLS ahead. A block is one integer product, or two if its
// halves have separate scales. The scales of weights and activations multiply its sum, which is added to the
// row's float sum in block order, so the bits of a row do not depend on the rest of the batch. Offsets are
// multiplied by the block's sum of activations; if its halves have separate offsets, these are integers under
// a scale, and one more product multiplies them with the activations.
//
// In memory and in shared memory, the int8 of a block of a quantised row are permuted for the lanes: member m
// of 4 has columns 4 m .. 4 m + 3, then 16 + 4 m .. 16 + 4 m + 3. In shared memory the 16-byte pieces of a
// row are swizzled, so that reads by 16 lanes of four rows hit different banks.
//
// Grid: x = share of the tiles. Reads W once per MMA_CODES_ROWS batch rows. Tasks are those of
// lib/linear.cuh, with 16 slots. A block has LINEAR_THREADS or half as many; each warp has one unit.
#pragma once

#include "block_codes.cuh"
#include "linear.cuh"

constexpr uint32_t kCodesBlocks = MMA_CODES_COLS / QUANT_COLS, kCodesTiles = MMA_CODES_ROWS / 8;
// Number of 8-row tiles that share one bounds check, so that one tile does not wait for a branch before the
// next. Types with two scales per block do not have the registers for two.
template <class T>
constexpr uint32_t kCodesAtOnce = kTwoScales<T> ? 1 : 2;

struct ActTile {
    uint8_t rows[MMA_CODES_ROWS * MMA_CODES_COLS];
    BlockQuant blocks[kCodesBlocks][MMA_CODES_ROWS];
    // Offset of a 16-byte piece of a row.
    DEVICE static uint32_t piece_offset(uint32_t row, uint32_t piece) {
        return row * MMA_CODES_COLS + (piece ^ (row % 4 * 2)) * 16;
    }
    // Offset of a lane's 8 bytes of row `quartet`, in a block.
    DEVICE static uint32_t lane_offset(uint32_t quartet, uint32_t member, uint32_t block) {
        return (piece_offset(quartet, member / 2) + member % 2 * 8) ^ (block * QUANT_COLS);
    }
};
static_assert(LINEAR_HEADER_BYTES + MMA_CODES_STAGES * sizeof(ActTile) == MMA_CODES_SHARED_BYTES,
    "the host asks for as much");

// Adds the products of a block of columns to a lane's sums of 16 weight rows by 8 batch rows. `quants` holds
// the BlockQuant of rows 2 member and 2 member + 1.
template <class T>
DEVICE void add_block(
    float (&to)[4], const typename T::Codes& upper, const typename T::Codes& lower, const uint32_t (&b)[2],
    uint4 quants
) {
    uint32_t a[4] = {upper.words[0], lower.words[0], upper.words[1], lower.words[1]};
    float scales[2] = {__uint_as_float(quants.x), __uint_as_float(quants.z)};
    auto add = [&](const int32_t(&bits)[4], float of_upper, float of_lower) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float by = (i < 2 ? of_upper : of_lower) * scales[i % 2];
            to[i] = fmaf(by, sum_of_bits(bits[i]), to[i]);
        }
    };
    int32_t bits[4];
    if constexpr (kTwoScales<T>) {
#pragma unroll
        for (int t = 0; t < 2; t++) {
            uint32_t half[2] = {a[2 * t], a[2 * t + 1]};
            mma_s8_16x8x16(bits, half, b[t], kSumBits);
            add(bits, upper.scale(t), lower.scale(t));
        }
        if constexpr (kOffsets<T>) {
            uint32_t mins[4] = {upper.mins[0], lower.mins[0], upper.mins[1], lower.mins[1]};
            mma_s8_16x8x32(bits, mins, b, kSumBits);
            add(bits, upper.of_mins, lower.of_mins);
        }
    } else {
        mma_s8_16x8x32(bits, a, b, kSumBits);
        add(bits, upper.scale(0), lower.scale(0));
        if constexpr (kOffsets<T>) {
            float of_acts[2] = {__uint_as_float(quants.y), __uint_as_float(quants.w)};
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[i] = fmaf(i < 2 ? upper.offset(0) : lower.offset(0), of_acts[i % 2], to[i]);
        }
    }
}

template <class T, class Task>
DEVICE void run_linear_codes(const StepTables& step, const InputParams& in, const Task& task) {
    ActTile* stages = reinterpret_cast<ActTile*>(shared_memory() + LINEAR_HEADER_BYTES);
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t lane = threadIdx.x % kWarpSize, quartet = lane / 4, member = lane % 4;
    uint32_t warps = blockDim.x / kWarpSize, units = task.units();
    uint32_t blocks = in.cols / QUANT_COLS, spans = (in.cols + MMA_CODES_COLS - 1) / MMA_CODES_COLS;
    const auto kind = kind_of<T>(task.weight(0));
    for (uint32_t tile = blockIdx.x;; tile += gridDim.x) {
        // Reloaded for each tile, so that it stays in no register.
        uint32_t n_rows = in.of_outputs ? step.counts->outputs : step.counts->rows;
        uint32_t tiles_of_rows = (n_rows + MMA_CODES_ROWS - 1) / MMA_CODES_ROWS;
        uint32_t all_rows = tiles_of_rows * MMA_CODES_ROWS;
        if (tile >= (units + warps - 1) / warps * tiles_of_rows) break;
        uint32_t unit = tile / tiles_of_rows * warps + threadIdx.x / kWarpSize;
        uint32_t first = tile % tiles_of_rows * MMA_CODES_ROWS;
        uint32_t n = n_rows - first < MMA_CODES_ROWS ? n_rows - first : MMA_CODES_ROWS;
        // Row `quartet` or `quartet + 8` of the warp's set.
        auto row_of = [&](int half) {
            uint32_t at = recomputed(unit);
            return at < units ? task.row(at, quartet + 8 * half) : WeightRow{};
        };
        typename T::Row rows[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            WeightRow at = row_of(half);
            // A missing row reads row 0; its result is not used.
            rows[half] = T::row(task.weight(at.weight), at.exists() ? at.row : 0);
        }
        // Past the last block the activations are 0: weights are those of the last block, or 0 where there
        // are no registers for its index.
        auto load = [&](typename T::Part(&to)[2], uint32_t block) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (kTwoScales<T> && block >= blocks) {
                    to[half] = typename T::Part{};
                } else {
                    uint32_t at = kTwoScales<T> || block < blocks ? block : blocks - 1;
                    to[half] = part_of<T>(rows[half], at, member, kind);
                }
            }
        };
        auto bring = [&](uint32_t span) {
            if (span < spans) {
                ActTile& to = stages[span % MMA_CODES_STAGES];
                // 8 threads per row, and 32 for the scales of a block.
                for (uint32_t i = threadIdx.x; i < MMA_CODES_ROWS * 8; i += blockDim.x) {
                    uint32_t m = i / 8;
                    if (m < n)
                        cp_async16(to.rows + ActTile::piece_offset(m, i % 8),
                            in.rounded.rows + uint64_t(first + m) * in.row_bytes + span * MMA_CODES_COLS +
                                i % 8 * 16);
                }
                uint32_t block = threadIdx.x / (MMA_CODES_ROWS / 2);
                uint32_t m = threadIdx.x % (MMA_CODES_ROWS / 2) * 2;
                if (block < kCodesBlocks)
                    cp_async16(to.blocks[block] + m,
                        in.rounded.blocks + uint64_t(span * kCodesBlocks + block) * all_rows + first + m);
            }
            cp_async_commit();
        };

        float sums[kCodesTiles][4] = {};
        auto multiply = [&](const typename T::Part(&parts)[2], const ActTile& acts, uint32_t block,
                            uint32_t in_span) {
            typename T::Codes upper = codes_of<T>(parts[0], block, member, kind);
            typename T::Codes lower = codes_of<T>(parts[1], block, member, kind);
#pragma unroll
            for (uint32_t of_rows = 0; of_rows < kCodesTiles; of_rows++) {
                if (of_rows % kCodesAtOnce<T> == 0 && 8 * of_rows >= n) break;
                uint2 q = load8(acts.rows + ActTile::lane_offset(quartet, member, in_span) +
                    8 * of_rows * MMA_CODES_COLS);
                uint32_t b[2] = {q.x, q.y};
                // Scale and scaled sum of rows 2 member and 2 member + 1.
                uint4 quants = load16(acts.blocks[in_span] + 8 * of_rows + 2 * member);
                add_block<T>(sums[of_rows], upper, lower, b, quants);
            }
        };

        // All warps are done with the previous tile.
        __syncthreads();
#pragma unroll 1
        for (uint32_t span = 0; span + 1 < MMA_CODES_STAGES; span++) bring(span);
        typename T::Part even[2], odd[2];
        constexpr uint32_t kOfPart = kPartOfTwo<T> ? 2 : 1;
        load(even, 0);
        load(odd, kOfPart);
        auto take = [&](typename T::Part(&parts)[2], const ActTile& acts, uint32_t span, uint32_t at) {
            uint32_t block = span * kCodesBlocks + at;
#pragma unroll
            for (uint32_t i = 0; i < kOfPart; i++) multiply(parts, acts, block + i, at + i);
            load(parts, block + 2 * kOfPart);
        };
#pragma unroll 1
        for (uint32_t span = 0; span < spans; span++) {
            cp_async_wait<MMA_CODES_STAGES - 2>();
            __syncthreads();
            // All warps are done with the stage that is refilled here.
            bring(span + MMA_CODES_STAGES - 1);
            const ActTile& acts = stages[span % MMA_CODES_STAGES];
#pragma unroll 1
            for (uint32_t at = 0; at < kCodesBlocks; at += 2 * kOfPart) {
                take(even, acts, span, at);
                take(odd, acts, span, at + kOfPart);
            }
        }
        WeightRow at[2] = {row_of(0), row_of(1)};
#pragma unroll
        for (uint32_t of_rows = 0; of_rows < kCodesTiles; of_rows++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t m = 8 * of_rows + 2 * member + i;
                if (m >= n) continue;
                float upper = finished<T>(task, at[0], sums[of_rows][i], {}, 1.0f);
                float lower = finished<T>(task, at[1], sums[of_rows][2 + i], {}, 1.0f);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    if (!at[half].exists()) continue;
                    uint32_t slot = quartet + 8 * half;
                    task.finish(unit, slot, first + m, half ? lower : upper, half ? upper : lower,
                        task.late(unit, slot, first + m, step.rows[first + m]));
                }
            }
        }
    }
}

// Most tiles of 8 batch rows that are multiplied at once, so that no register spills: more rows take several
// passes over a unit's weights, which are in the L2 cache by then.
template <class T>
constexpr uint32_t kFewTiles = kTwoScales<T> || kPartOfTwo<T> ? 4 : 8;

// Weights of a tile of 16 rows, whose columns are divided among a block's warps, two blocks at a time. `even`
// and `odd` are those of the two blocks; for types with kPartOfTwo, of the warp's next two pairs of blocks.
template <class T, class Kind>
struct FewWeights {
    static constexpr uint32_t kWarps = LINEAR_THREADS / kWarpSize;
    // Blocks from those of `even` to those of `odd`, and to the next of `even`.
    static constexpr uint32_t kToOdd = kPartOfTwo<T> ? 2 * kWarps : 1;
    static constexpr uint32_t kToNext = kPartOfTwo<T> ? 4 * kWarps : 2 * kWarps;
    Kind kind;
    typename T::Row rows[2];
    typename T::Part even[2], odd[2];
    // Past the end, loads the last block again, without a branch; it is not multiplied.
    DEVICE void load(typename T::Part (&to)[2], uint32_t block, uint32_t last) const {
#pragma unroll
        for (int half = 0; half < 2; half++)
            to[half] = part_of<T>(rows[half], block < last ? block : last, threadIdx.x % 4, kind);
    }
    // Loads the first weights of a unit, if it exists.
    template <class Task>
    DEVICE void begin(const Task& task, uint32_t unit, uint32_t last) {
        if (unit >= task.units()) return;
        uint32_t block = threadIdx.x / kWarpSize * 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            WeightRow at = task.row(unit, threadIdx.x % kWarpSize / 4 + 8 * half);
            // A missing row reads row 0; its result is not used.
            rows[half] = T::row(task.weight(at.weight), at.exists() ? at.row : 0);
        }
        load(even, block, last);
        load(odd, block + kToOdd, last);
    }
};

// Activations of 8 batch rows in one block of columns, as a lane needs them.
struct FewActs {
    uint2 q;
    // Scale and scaled sum of rows 2 member and 2 member + 1.
    uint4 quants;
};

// Products of 8 kTiles batch rows at a time. The warps' sums are added in shared memory, in warp order, so
// the bits of a row depend on neither kTiles nor the rest of the batch.
template <class T, uint32_t kTiles, class Task, class Kind>
DEVICE void multiply_few(
    const StepTables& step, const InputParams& in, const Task& task, uint32_t n, FewWeights<T, Kind>& weights
) {
    constexpr uint32_t kWarps = LINEAR_THREADS / kWarpSize, kRows = 8 * kTiles;
    // Layout: [warps][batch rows][slots].
    static_assert(kWarps * 8 * MMA_FEW_PITCH * 4 == MMA_FEW_TILE_BYTES, "the host asks for as much");
    static_assert(MMA_CODES_ROWS == MMA_FEW_ROWS, "the blocks of all rows are in one tile");
    float* shared = reinterpret_cast<float*>(shared_memory() + LINEAR_HEADER_BYTES);
    uint32_t lane = threadIdx.x % kWarpSize, quartet = lane / 4, member = lane % 4;
    uint32_t warp = threadIdx.x / kWarpSize, units = task.units();
    uint32_t blocks = in.cols / QUANT_COLS, last = blocks - 1;
    for (uint32_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
        for (uint32_t first = 0; first < n; first += kRows) {
            float sums[kTiles][4] = {};
            const uint8_t* of_lane = in.rounded.rows + (first + quartet) * in.row_bytes + 8 * member;
            // Loaded two tiles ahead.
            FewActs acts[2];
            auto bring = [&](uint32_t slot, uint32_t block, uint32_t tile) {
                block = block < last ? block : last;
                // Hides the row, so that the offset of each tile is not kept in a register.
                uint32_t row = tile == 0 ? 0 : recomputed(8 * tile);
                acts[slot].q = load8(of_lane + (block * QUANT_COLS + row * in.row_bytes));
                acts[slot].quants =
                    load16(in.rounded.blocks + block * MMA_CODES_ROWS + first + 2 * member + 8 * tile);
            };
            // Multiplies block `block`; the ones after it are `next` and `after`. `of_pair` tells which of a
            // pair it is.
            auto multiply = [&](const typename T::Part(&parts)[2], uint32_t of_pair, uint32_t block,
                                uint32_t next, uint32_t after) {
                typename T::Codes upper = codes_of<T>(parts[0], block, member, weights.kind);
                typename T::Codes lower = codes_of<T>(parts[1], block, member, weights.kind);
#pragma unroll
                for (uint32_t tile = 0; tile < kTiles; tile++) {
                    uint32_t slot = (of_pair * kTiles + tile) % 2;
                    uint32_t b[2] = {acts[slot].q.x, acts[slot].q.y};
                    add_block<T>(sums[tile], upper, lower, b, acts[slot].quants);
                    if (tile + 2 < kTiles) {
                        bring(slot, block, tile + 2);
                    } else {
                        bring(slot, kTiles == 1 ? after : next, kTiles == 1 ? 0 : tile + 2 - kTiles);
                    }
                }
            };
            bring(0, 2 * warp, 0);
            bring(1, kTiles == 1 ? 2 * warp + 1 : 2 * warp, kTiles == 1 ? 0 : 1);
            // Multiplies the pair of blocks from `block` on.
            auto take = [&](const typename T::Part(&even)[2], const typename T::Part(&odd)[2],
                            uint32_t block, auto between) {
                uint32_t next = block + 2 * kWarps;
                multiply(even, 0, block, block + 1, next);
                between();
                if (block + 1 < blocks) multiply(odd, 1, block + 1, next, next + 1);
            };
            constexpr uint32_t kToNext = FewWeights<T, Kind>::kToNext;
#pragma unroll 1
            for (uint32_t block = 2 * warp; block < blocks; block += kToNext) {
                if constexpr (kPartOfTwo<T>) {
                    take(weights.even, weights.even, block, [] {});
                    weights.load(weights.even, block + kToNext, last);
                    if (block + 2 * kWarps < blocks)
                        take(weights.odd, weights.odd, block + 2 * kWarps, [] {});
                    weights.load(weights.odd, block + kToNext + 2 * kWarps, last);
                } else {
                    take(weights.even, weights.odd, block,
                        [&] { weights.load(weights.even, block + kToNext, last); });
                    weights.load(weights.odd, block + kToNext + 1, last);
                }
            }
            bool is_last = first + kRows >= n;
            weights.begin(task, is_last ? unit + gridDim.x : unit, last);
            // Recomputed, so that it is in no register during the products.
            uint32_t thread = recomputed(threadIdx.x);
            uint32_t place = (thread / kWarpSize * kRows + thread % 4 * 2) * MMA_FEW_PITCH;
            place += thread % kWarpSize / 4;
#pragma unroll
            for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    shared[place + (8 * tile + i % 2) * MMA_FEW_PITCH + i / 2 * 8] = sums[tile][i];
            }
            __syncthreads();
            uint32_t there = n - first < kRows ? n - first : kRows;
            for (uint32_t i = threadIdx.x; i < 16 * there; i += blockDim.x) {
                uint32_t at = i / 16, slot = i % 16, m = first + at;
                auto y = [&](uint32_t of_slot) {
                    float sum = 0.0f;
#pragma unroll
                    for (uint32_t from = 0; from < kWarps; from++)
                        sum += shared[(from * kRows + at) * MMA_FEW_PITCH + of_slot];
                    return finished<T>(task, task.row(unit, of_slot), sum, {}, 1.0f);
                };
                float own = y(slot), other = y(slot ^ 8);
                if (task.row(unit, slot).exists())
                    task.finish(unit, slot, m, own, other, task.late(unit, slot, m, step.rows[m]));
            }
            __syncthreads();
        }
    }
}

// The same for up to MMA_FEW_ROWS batch rows. A tile is 16 weight rows; the warps of a block divide its
// columns, and load activations from global memory to registers. Grid: x = share of the tiles.
template <class T, class Task>
DEVICE void run_linear_few(const StepTables& step, const InputParams& in, const Task& task) {
    const auto kind = kind_of<T>(task.weight(0));
    FewWeights<T, decltype(kind_of<T>(task.weight(0)))> weights;
    weights.kind = kind;
    weights.begin(task, blockIdx.x, in.cols / QUANT_COLS - 1);
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t n = in.of_outputs ? step.counts->outputs : step.counts->rows;
    if (n <= 8) {
        multiply_few<T, 1>(step, in, task, n, weights);
    } else if (n <= 16) {
        multiply_few<T, 2>(step, in, task, n, weights);
    } else if (n <= 32) {
        multiply_few<T, 4>(step, in, task, n, weights);
    } else {
        multiply_few<T, kFewTiles<T>>(step, in, task, n, weights);
    }
}
