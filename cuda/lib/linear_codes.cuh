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

// Weights of a tile of 16 rows, whose columns are divided among a block's warps, two blocks at a time.
template <class T, class Kind>
struct FewWeights {
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
        load(odd, block + 1, last);
    }
};

// Products of 8 kTiles batch rows. The warps' sums are added in shared memory, in warp order.
template <class T, uint32_t kTiles, class Task, class Kind>
DEVICE void multiply_few(
    const StepTables& step, const InputParams& in, const Task& task, uint32_t n, FewWeights<T, Kind>& weights
) {
    constexpr uint32_t kWarps = LINEAR_THREADS / kWarpSize;
    // Layout: [warps][batch rows][slots].
    static_assert(LINEAR_HEADER_BYTES + kWarps * MMA_FEW_ROWS * MMA_FEW_PITCH * 4 == MMA_FEW_SHARED_BYTES,
        "the host asks for as much");
    float* shared = reinterpret_cast<float*>(shared_memory() + LINEAR_HEADER_BYTES);
    uint32_t lane = threadIdx.x % kWarpSize, quartet = lane / 4, member = lane % 4;
    uint32_t warp = threadIdx.x / kWarpSize, units = task.units();
    uint32_t blocks = in.cols / QUANT_COLS, last = blocks - 1;
    // Activations are loaded two blocks ahead, or one block ahead with more rows.
    constexpr bool kAhead = kTiles == 1;
    struct Acts {
        uint2 q[kTiles];
        uint4 quants[kTiles];
    };
    auto bring = [&](Acts& to, uint32_t block) {
        block = block < last ? block : last;
#pragma unroll
        for (uint32_t tile = 0; tile < kTiles; tile++) {
            to.q[tile] = load8(in.rounded.rows + uint64_t(8 * tile + quartet) * in.row_bytes +
                block * QUANT_COLS + 8 * member);
            to.quants[tile] =
                load16(in.rounded.blocks + uint64_t(block) * MMA_CODES_ROWS + 8 * tile + 2 * member);
        }
    };
    for (uint32_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
        float sums[kTiles][4] = {};
        auto multiply = [&](const typename T::Part(&parts)[2], const Acts& acts, uint32_t block) {
            typename T::Codes upper = codes_of<T>(parts[0], block, member, weights.kind);
            typename T::Codes lower = codes_of<T>(parts[1], block, member, weights.kind);
#pragma unroll
            for (uint32_t tile = 0; tile < kTiles; tile++) {
                uint32_t b[2] = {acts.q[tile].x, acts.q[tile].y};
                add_block<T>(sums[tile], upper, lower, b, acts.quants[tile]);
            }
        };
        Acts of_even, of_odd;
        bring(of_even, 2 * warp);
        if (kAhead) bring(of_odd, 2 * warp + 1);
#pragma unroll 1
        for (uint32_t block = 2 * warp; block < blocks; block += 2 * kWarps) {
            uint32_t next = block + 2 * kWarps;
            multiply(weights.even, of_even, block);
            weights.load(weights.even, next, last);
            bring(of_even, kAhead ? next : block + 1);
            Acts& second = kAhead ? of_odd : of_even;
            if (block + 1 < blocks) multiply(weights.odd, second, block + 1);
            weights.load(weights.odd, next + 1, last);
            bring(second, kAhead ? next + 1 : next);
        }
        weights.begin(task, unit + gridDim.x, last);
#pragma unroll
        for (uint32_t tile = 0; tile < kTiles; tile++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t m = 8 * tile + 2 * member + i % 2, slot = quartet + i / 2 * 8;
                shared[(warp * MMA_FEW_ROWS + m) * MMA_FEW_PITCH + slot] = sums[tile][i];
            }
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < 16 * n; i += blockDim.x) {
            uint32_t m = i / 16, slot = i % 16;
            auto y = [&](uint32_t of_slot) {
                float sum = 0.0f;
#pragma unroll
                for (uint32_t from = 0; from < kWarps; from++)
                    sum += shared[(from * MMA_FEW_ROWS + m) * MMA_FEW_PITCH + of_slot];
                return finished<T>(task, task.row(unit, of_slot), sum, {}, 1.0f);
            };
            float own = y(slot), other = y(slot ^ 8);
            if (task.row(unit, slot).exists())
                task.finish(unit, slot, m, own, other, task.late(unit, slot, m, step.rows[m]));
        }
        __syncthreads();
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
    } else {
        multiply_few<T, MMA_FEW_ROWS / 8>(step, in, task, n, weights);
    }
}
