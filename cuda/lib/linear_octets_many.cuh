// Linear layers on tensor cores for more than OCTET_MAX_ROWS rows of activations quantised by block, and
// weights in octets: int8 mma.sync over codes that pass through shared memory.
//
// A tile is OCTET_UNITS units of 16 weight rows, two octets each, times MANY_ROWS batch rows. Each warp of a
// block has two units and half of the batch rows, 32 by 32 sums, so that what it loads from shared memory
// serves two products: activations and their scales those of both units, weights those of four times 8 batch
// rows. A block multiplies whole tiles, and sums are added block by block of columns: so the bits of a row
// depend neither on the number of rows nor on the other rows.
//
// The columns of a tile pass through two slots in shared memory, a stage at a time: two runs of the codes of
// each octet, which are 128 columns (64 of Q8_0), and the activations of all batch rows, which an earlier
// kernel has quantised and put in the order of the operands (stage/quantize_octets.cu). While a stage is
// multiplied, the next one is copied, also that of the block's next tile; the weights of the first one before
// the kernel waits for its predecessor. Two blocks share a multiprocessor. Copies are those of 16 bytes on
// every GPU, because setting up bulk copies takes more instructions for pieces of this size. The scales of a
// tile's rows are decoded once for all warps: each warp has those of one unit in registers, loaded a stage or
// more ahead, and writes them to shared memory.
//
// Grid: x = share of the tiles. Reads W once per MANY_ROWS batch rows, and the activations once per 16
// OCTET_UNITS weight rows. Tasks are those of lib/linear.cuh, with 16 slots; the rows of a unit are in two
// octets, which the host makes sure of. Of types with kinds, these kernels multiply kind 0. A weight type has
//
//   kStages                          stages per octet
//   kMore, kMoreBytes                further bits of the codes: place in an octet, bytes of a stage
//   stage_codes(halves, block, out)  a lane's codes of a block of a stage: of its first 16 columns, and of
//                                    the others. `halves` are its places in both halves of the stage's first
//                                    run; the second run follows, and then further bits
//   Head, octet_head(row, half), octet_scales(head, half, kind, to)  as in lib/linear_octets.cuh
#pragma once

#include "linear_octets.cuh"

// Slots of the ring, and bytes of an octet's runs in a stage.
constexpr uint32_t kManySlots = 2, kStageRunBytes = 2 * kRunBytes;
// Tiles of 8 batch rows of a warp.
constexpr uint32_t kManyTiles = MANY_ROWS / 2 / 8;
// Bytes of the activations of a tile in 4 blocks of columns, and in a span.
constexpr uint32_t kActPartBytes = MANY_ROWS * 4 * (QUANT_COLS + MANY_QUANT_BYTES);
constexpr uint32_t kActSpanBytes = kBlocksOfSpan / 4 * kActPartBytes;

template <class T, class Task>
struct ManyProducts {
    // Blocks of columns in a stage, and stages whose scales are in shared memory at a time: 8 per row.
    static constexpr uint32_t kBlocks = kBlocksOfSpan / T::kStages;
    static constexpr uint32_t kScaleStages = kTwoScales<T> ? 1 : T::kStages;
    static constexpr uint32_t kOctetBytes = T::octet_bytes(kind_of_octets<T, false>());
    // Bytes of a stage: of an octet, of a unit, and of the activations' codes, scales and sums.
    static constexpr uint32_t kPieceBytes = kStageRunBytes + T::kMoreBytes, kUnitBytes = 2 * kPieceBytes;
    static constexpr uint32_t kCodesBytes = kBlocks * MANY_ROWS * QUANT_COLS;
    static constexpr uint32_t kScalesBytes = kBlocks * MANY_ROWS * sizeof(float);
    static constexpr uint32_t kQuantBytes = kOffsets<T> ? 3 * kScalesBytes : kScalesBytes;
    static constexpr uint32_t kSlotBytes = OCTET_UNITS * kUnitBytes + kCodesBytes + kQuantBytes;
    // Floats per row of weights: the scales, with offsets then the minimums as integers, and what these are
    // multiplied by. The pitch lets lanes read from different banks.
    static constexpr uint32_t kPitch = kOffsets<T> ? 2 * kBlocksOfSpan + 4 : kBlocksOfSpan + 4;
    static_assert(T::kStages % kManySlots == 0, "a stage of an octet is always in the same slot");
    static_assert(!kOffsets<T> || kBlocks == 4, "columns of the operand of minimums");

    // A block's shared memory.
    struct Shared {
        uint8_t slots[kManySlots][kSlotBytes];
        union {
            float scales[kRowsOfTile][kPitch];
            // Sums of 16 rows by 8 batch rows of each warp, with a pitch for the same reason.
            float sums[OCTET_UNITS][8][20];
        };
    };
    static_assert(sizeof(Shared) <= MANY_SHARED_BYTES, "the host asks for as much");

    const StepTables& step;
    const InputParams& in;
    const Task& task;
    Shared& shared;
    // What is brought next: one of this warp's octets, of which the lower lanes have the first and the upper
    // lanes the second; and this thread's activations.
    const uint8_t *octet, *acts;
    // Scales of one of this warp's rows, which are not in shared memory yet.
    typename T::Head head;
    // As in OctetProducts.
    const uint32_t warp, lane;
    // Places of what this lane multiplies in a slot: of its codes, those of the activations and their scales;
    // and of the scales of its first row. They are kept, as the compiler would not.
    uint32_t of_half, of_codes, of_quants, of_scales;

    DEVICE ManyProducts(const StepTables& step, const InputParams& in, const Task& task)
        : step(step), in(in), task(task), shared(*reinterpret_cast<Shared*>(shared_memory())),
          warp(__shfl_sync(kWarp, threadIdx.x / kWarpSize, 0)),
          lane(recomputed(threadIdx.x % kWarpSize)) {
        uint32_t quartet = lane / 4, member = lane % 4, pair = warp / 2, first = first_row();
        uint32_t of_acts = OCTET_UNITS * kUnitBytes;
        of_half = pair * 2 * kUnitBytes + OctetRow{nullptr, quartet}.piece(0, 0) + 4 * member;
        of_codes = recomputed(of_acts + first * QUANT_COLS + 8 * lane);
        of_acts += kCodesBytes;
        of_quants = recomputed(of_acts + (first + 2 * member) * sizeof(float));
        of_scales = recomputed((32 * pair + quartet) * kPitch);
    }

    // First batch row of this warp in a tile.
    DEVICE uint32_t first_row() const { return warp % 2 * (MANY_ROWS / 2); }
    DEVICE const float* scales_of(uint32_t unit, uint32_t half) const {
        return shared.scales[16 * unit + 8 * half] + of_scales;
    }
    // These are loaded when they are needed, so that they stay in no registers: batch rows, tiles of them,
    // and all tiles; and octets of a row.
    DEVICE uint32_t n_rows() const { return in.of_outputs ? step.counts->outputs : step.counts->rows; }
    DEVICE uint32_t tiles_of_rows() const { return (n_rows() + MANY_ROWS - 1) / MANY_ROWS; }
    DEVICE uint32_t n_tiles() const {
        return (task.units() + OCTET_UNITS - 1) / OCTET_UNITS * tiles_of_rows();
    }
    DEVICE uint32_t spans() const { return in.row_bytes / OCTET_COLS; }

    // Goes to the beginning of a tile. Past the last unit the octets are its once more; the result is not
    // used.
    DEVICE void enter(uint32_t tile) {
        uint32_t of_rows = tiles_of_rows();
        uint32_t unit = tile / of_rows * OCTET_UNITS + warp, last = task.units() - 1;
        UnitRows rows = UnitRows::of(task, unit < last ? unit : last);
        WeightRow begin = lane < kWarpSize / 2 ? rows.first[0] : rows.first[1];
        octet = T::row(task.weight(begin.weight), begin.row).octets;
        uint64_t spans_before = uint64_t(tile % of_rows) * spans();
        acts = in.rounded.rows + spans_before * kActSpanBytes + 16 * threadIdx.x;
    }
    // Goes to the next span of the tile.
    DEVICE void go_on() {
        octet += kOctetBytes;
        acts += kActSpanBytes;
    }

    // Starts to copy a stage of this warp's octets and loads the scales that begin with it, or copies the
    // activations.
    DEVICE void bring_weights(uint32_t stage) {
        uint32_t at = 16 * (lane % 16);
        uint8_t* to = shared.slots[stage % kManySlots] + warp * kUnitBytes + lane / 16 * kPieceBytes + at;
        const uint8_t* from = octet + at;
#pragma unroll
        for (uint32_t i = 0; i < kStageRunBytes; i += kRunBytes)
            cp_async16(to + i, from + stage * kStageRunBytes + i);
        if constexpr (T::kMoreBytes > 0) {
            static_assert(T::kMoreBytes == kRunBytes, "one copy of a lane");
            cp_async16(to + kStageRunBytes, from + T::kMore + stage * T::kMoreBytes);
        }
        if (stage % kScaleStages == 0) {
            auto row = T::row_of(octet, lane % OCTET_ROWS, kind_of_octets<T, false>());
            head = T::octet_head(row, kTwoScales<T> ? stage : lane / 8 % 2);
        }
    }
    DEVICE void bring_acts(uint32_t stage) const {
        uint8_t* to = shared.slots[stage % kManySlots] + OCTET_UNITS * kUnitBytes + 16 * threadIdx.x;
        // A part has 4 blocks: codes, scales, sums.
        const uint8_t* part = acts + stage * kBlocks / 4 * kActPartBytes;
        uint32_t in_part = stage * kBlocks % 4 / kBlocks;
        static_assert(kCodesBytes % (16 * LINEAR_THREADS) == 0, "copies of all threads");
#pragma unroll
        for (uint32_t i = 0; i < kCodesBytes; i += 16 * LINEAR_THREADS)
            cp_async16(to + i, part + in_part * kCodesBytes + i);
        if (threadIdx.x < kQuantBytes / 16)
            cp_async16(to + kCodesBytes, part + 4 * MANY_ROWS * QUANT_COLS + in_part * kScalesBytes);
    }
    // Writes the scales of this warp's unit for all warps.
    DEVICE void write_scales() {
        float* to = shared.scales[16 * warp + lane / 16 * OCTET_ROWS + lane % OCTET_ROWS];
        uint32_t half = lane / 8 % 2;
        if constexpr (kTwoScales<T>) {
            if (half == 0) T::octet_scales(head, 0, kind_of_octets<T, false>(), to);
        } else {
            T::octet_scales(head, half, kind_of_octets<T, false>(), to);
        }
    }

    // Adds the products of a stage.
    DEVICE void multiply(float (&sums)[2][kManyTiles][4], uint32_t stage) const {
        const uint8_t* slot = shared.slots[stage % kManySlots];
        uint32_t at = stage % kScaleStages;
        // Scales of a row's two halves of a block, or of two blocks.
        float by[2][2][2];
#pragma unroll
        for (uint32_t block = 0; block < kBlocks; block++) {
            // Keeps the compiler from loading for several blocks at once: it has no registers for that with
            // two scales per block.
            if constexpr (kTwoScales<T>) __syncwarp();
            // Of both units: rows `quartet` and `quartet + 8`.
            uint32_t a[2][2][2];
#pragma unroll
            for (uint32_t unit = 0; unit < 2; unit++) {
#pragma unroll
                for (uint32_t half = 0; half < 2; half++) {
                    const uint8_t* piece = slot + unit * kUnitBytes + half * kPieceBytes;
                    T::stage_codes({piece + of_half, piece + (of_half ^ 16)}, block, a[unit][half]);
                    const float* of_row = scales_of(unit, half);
                    if constexpr (kTwoScales<T>) {
                        uint2 two = load8(of_row + 2 * block);
                        by[unit][half][0] = __uint_as_float(two.x);
                        by[unit][half][1] = __uint_as_float(two.y);
                    } else {
                        // Two at a time.
                        if (block % 2 == 0) {
                            uint2 two = load8(of_row + at * kBlocks + block);
                            by[unit][half][0] = __uint_as_float(two.x);
                            by[unit][half][1] = __uint_as_float(two.y);
                        }
                    }
                }
            }
#pragma unroll
            for (uint32_t tile = 0; tile < kManyTiles; tile++) {
                uint2 q = load8(slot + of_codes + block * (MANY_ROWS * QUANT_COLS) + tile * (8 * QUANT_COLS));
                uint2 s = load8(slot + of_quants + (block * MANY_ROWS + 8 * tile) * sizeof(float));
                uint32_t b[2] = {q.x, q.y};
                float of_acts[2] = {__uint_as_float(s.x), __uint_as_float(s.y)};
#pragma unroll
                for (uint32_t unit = 0; unit < 2; unit++) {
                    const auto &upper = a[unit][0], &lower = a[unit][1];
                    if constexpr (kTwoScales<T>) {
#pragma unroll
                        for (int t = 0; t < 2; t++) {
                            float of_rows[2] = {by[unit][0][t], by[unit][1][t]};
                            add_half_bytes(sums[unit][tile], upper[t], lower[t], of_rows, b[t], of_acts);
                        }
                    } else {
                        float of_rows[2] = {by[unit][0][block % 2], by[unit][1][block % 2]};
                        add_bytes<kOffsets<T>>(sums[unit][tile], upper, lower, of_rows, b, of_acts);
                    }
                }
            }
        }
        if constexpr (kOffsets<T>) add_minimums(sums, slot, at);
    }

    // Adds the products of the minimums of a stage's four blocks, integers, with the scaled sums of the
    // activations, which the kernel before has split into two tf32 of 11 bits each.
    DEVICE void add_minimums(
        float (&sums)[2][kManyTiles][4], const uint8_t* slot, uint32_t at
    ) const {
        // A row takes as many bytes as in the codes of a block.
        static_assert(4 * 2 * sizeof(float) == QUANT_COLS, "and a lane has the same ones");
        const uint8_t* sums_of_acts = slot + of_codes + kCodesBytes + kScalesBytes;
        float by[2][2];
        uint32_t a[2][2];
#pragma unroll
        for (uint32_t unit = 0; unit < 2; unit++) {
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                const float* of_row = scales_of(unit, half) + kBlocksOfSpan;
                a[unit][half] = load4(of_row + at * kBlocks + lane % 4);
                by[unit][half] = __uint_as_float(load4(of_row + kBlocksOfSpan));
            }
        }
#pragma unroll
        for (uint32_t tile = 0; tile < kManyTiles; tile++) {
            // [MANY_ROWS rows, 4 blocks], the upper 11 bits and the others
            uint2 parts = load8(sums_of_acts + tile * 8 * 4 * 2 * sizeof(float));
#pragma unroll
            for (uint32_t unit = 0; unit < 2; unit++) {
                float products[4] = {};
                mma_tf32_16x8x4(products, a[unit], parts.y);
                mma_tf32_16x8x4(products, a[unit], parts.x);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sums[unit][tile][i] = fmaf(by[unit][i / 2], products[i], sums[unit][tile][i]);
            }
        }
    }

    // Finishes a tile. The rows of an operand are those of octets, which the task may have in another order,
    // so a warp puts its sums in shared memory, 16 rows by 8 batch rows at a time.
    DEVICE void finish(const float (&sums)[2][kManyTiles][4], uint32_t tile) {
        // All warps are done with the scales.
        __syncthreads();
        uint32_t quartet = lane / 4, member = lane % 4, n_units = task.units(), n = n_rows();
        uint32_t of_rows = tiles_of_rows(), first_of_warp = tile % of_rows * MANY_ROWS + first_row();
        float(&own_sums)[8][20] = shared.sums[warp];
#pragma unroll
        for (uint32_t of_unit = 0; of_unit < 2; of_unit++) {
            uint32_t unit = tile / of_rows * OCTET_UNITS + warp / 2 * 2 + of_unit;
            if (unit >= n_units) break;
            UnitRows rows = UnitRows::of(task, unit);
#pragma unroll
            for (uint32_t eight = 0; eight < kManyTiles; eight++) {
                uint32_t first = first_of_warp + 8 * eight;
                if (first >= n) break;
                const float(&of_lane)[4] = sums[of_unit][eight];
                __syncwarp();
                own_sums[2 * member][quartet] = of_lane[0];
                own_sums[2 * member + 1][quartet] = of_lane[1];
                own_sums[2 * member][quartet + 8] = of_lane[2];
                own_sums[2 * member + 1][quartet + 8] = of_lane[3];
                __syncwarp();
#pragma unroll 1
                for (uint32_t i = lane; i < 16 * 8; i += kWarpSize) {
                    uint32_t slot = i % 16, m = first + i / 16;
                    if (m >= n) break;
                    auto y = [&](uint32_t of_slot) {
                        WeightRow at = task.row(unit, of_slot);
                        float sum = at.exists() ? own_sums[i / 16][rows.place(at)] : 0.0f;
                        return finished<T>(task, at, sum, {}, 1.0f);
                    };
                    float own = y(slot), other = y(slot ^ 8);
                    if (task.row(unit, slot).exists())
                        task.finish(unit, slot, m, own, other, task.late(unit, slot, m, step.rows[m]));
                }
            }
        }
    }

    DEVICE void run() {
        bool any = blockIdx.x < n_tiles();
        if (any) {
            enter(blockIdx.x);
            bring_weights(0);
        }
        let_next_kernel_start();
        wait_for_previous_kernel();
        if (!any) return;
        bring_acts(0);
        cp_async_commit();
#pragma unroll 1
        for (uint32_t tile = blockIdx.x; tile < n_tiles(); tile += gridDim.x) {
            // True if this warp has batch rows.
            bool has_rows = tile % tiles_of_rows() * MANY_ROWS + first_row() < n_rows();
            float sums[2][kManyTiles][4] = {};
#pragma unroll 1
            for (uint32_t left = spans(); left > 0; left--) {
#pragma unroll
                for (uint32_t stage = 0; stage < T::kStages; stage++) {
                    cp_async_wait<0>();
                    // All warps are done with the stage before, whose slot and scales are free.
                    __syncthreads();
                    bool begins = stage % kScaleStages == 0;
                    if (begins) write_scales();
                    bool is_more = true;
                    if (stage + 1 == T::kStages) {
                        if (left > 1) {
                            go_on();
                        } else if (tile + gridDim.x < n_tiles()) {
                            enter(tile + gridDim.x);
                        } else {
                            is_more = false;
                        }
                    }
                    if (is_more) {
                        bring_weights((stage + 1) % T::kStages);
                        bring_acts((stage + 1) % T::kStages);
                    }
                    cp_async_commit();
                    if (begins) __syncthreads();
                    if (has_rows) multiply(sums, stage);
                }
            }
            finish(sums, tile);
        }
    }
};

template <class T, class Task>
DEVICE void run_linear_octets_many(const StepTables& step, const InputParams& in, const Task& task) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    // As in run_linear_octets.
    __trap();
#else
    ManyProducts<T, Task>(step, in, task).run();
#endif
}
