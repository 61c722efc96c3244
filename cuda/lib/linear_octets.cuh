// Linear layers on tensor cores for 2 to OCTET_MAX_ROWS rows of activations quantised by block, and weights
// in octets: int8 mma.sync over codes that are streamed through shared memory.
//
// A tile is OCTET_UNITS units of 16 weight rows, two octets each, times 8 kTiles batch rows. Each kTiles has
// its own kernel, so that those of a few rows take few registers; more batch rows take several passes. A
// span is OCTET_COLS columns of a tile. The spans of all tiles are divided evenly among the blocks, one
// contiguous range each (stream-K), so that every multiprocessor reads as many bytes for any shape. Blocks
// leave their sums of a tile in memory, and the last one to arrive adds them up in the order of columns. The
// division depends on the weights and on the GPU, not on the step, and sums are added block by block of
// columns: so the bits of a row depend neither on the number of rows nor on the other rows.
//
// A block has a ring of slots in shared memory. A slot holds a span: two octets per warp, and the
// activations of all rows, which an earlier kernel has quantised and put in the order of the operands
// (stage/quantize_octets.cu). Slots are filled ahead of the products, by bulk copies that a barrier counts
// (sm_90 and later) or by 16-byte copies of each thread; the weights of the first ones before the kernel
// waits for its predecessor. So the bytes in flight do not depend on registers. A warp decodes the scales of
// its 16 rows once per span, one lane for 4 blocks of columns of a row.
//
// Grid: x = share of the spans. Reads W once (per pass), and the activations once per tile. Tasks are those
// of lib/linear.cuh, with 16 slots; the rows of a unit are in two octets, which the host makes sure of.
// `arrived` must be 0.
#pragma once

#include "../simt_bulk.h"
#include "linear_codes.cuh"
#include "linear_mma.cuh"
#include "octets.cuh"

constexpr uint32_t kBlocksOfSpan = OCTET_COLS / QUANT_COLS, kRowsOfTile = 16 * OCTET_UNITS;
static_assert(OCTET_UNITS == LINEAR_THREADS / kWarpSize, "a warp has a unit");

// Start of a block's shared memory, before the slots.
struct OctetShared {
    CopyBarrier full[OCTET_MAX_SLOTS];
    // Flags the last block of a tile.
    uint32_t word;
    uint32_t reserved[LINEAR_HEADER_BYTES / 4 - 2 * OCTET_MAX_SLOTS - 1];
    union {
        // Of each of a warp's rows: the scale of each block of columns, and with offsets then the minimums as
        // integers, and what they are multiplied by; or the scales of both halves of each block. The pitch
        // lets lanes read from different banks.
        float scales[OCTET_UNITS][16][2 * kBlocksOfSpan + 4];
        // Sums of 8 batch rows, one after the other, with a pitch for the same reason.
        float sums[8][kRowsOfTile + 4];
    };
};
static_assert(sizeof(OctetShared) == OCTET_FIXED_BYTES, "the host asks for as much");

// Adds a lane's integers of a block of columns, which start at kSumBits, times their scales to its sums.
// `of_acts` has the scales of batch rows 2 member and 2 member + 1. These have 22 bits
// (stage/quantize_octets.cu), so their products with the 1.5 x 2^23 of kSumBits are exact and leave the sum
// of a block in one fmaf.
DEVICE void add_scaled(
    float (&to)[4], const int32_t (&bits)[4], const float (&scales)[2], const float (&of_acts)[2]
) {
    float start = __int_as_float(kSumBits), less[2] = {-start * of_acts[0], -start * of_acts[1]};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float sum = fmaf(of_acts[i % 2], __int_as_float(bits[i]), less[i % 2]);
        to[i] = fmaf(scales[i / 2], sum, to[i]);
    }
}

// Adds the products of a block of columns under one scale to a lane's sums of 16 weight rows by 8 batch rows.
template <bool Unsigned>
DEVICE void add_bytes(
    float (&to)[4], const uint32_t (&upper)[2], const uint32_t (&lower)[2], const float (&scales)[2],
    const uint32_t (&b)[2], const float (&of_acts)[2]
) {
    uint32_t a[4] = {upper[0], lower[0], upper[1], lower[1]};
    int32_t bits[4];
    if constexpr (Unsigned) {
        mma_u8_16x8x32(bits, a, b, kSumBits);
    } else {
        mma_s8_16x8x32(bits, a, b, kSumBits);
    }
    add_scaled(to, bits, scales, of_acts);
}

// The same for half a block.
DEVICE void add_half_bytes(
    float (&to)[4], uint32_t upper, uint32_t lower, const float (&scales)[2], uint32_t b,
    const float (&of_acts)[2]
) {
    uint32_t a[2] = {upper, lower};
    int32_t bits[4];
    mma_s8_16x8x16(bits, a, b, kSumBits);
    add_scaled(to, bits, scales, of_acts);
}

// The two octets of a unit, as the rows of weights at which they begin. The row of a slot is in one of them.
struct UnitRows {
    WeightRow first[2];

    template <class Task>
    DEVICE static UnitRows of(const Task& task, uint32_t unit) {
        WeightRow begin = task.row(unit, 0), end = task.row(unit, 15);
        // The last unit may have fewer rows.
        if (!end.exists()) end = task.row(unit, 8);
        if (!end.exists()) end = begin;
        begin.row -= begin.row % OCTET_ROWS;
        end.row -= end.row % OCTET_ROWS;
        return {{begin, end}};
    }
    // Row of the tensor core operand that a row of weights is in.
    DEVICE uint32_t place(const WeightRow& at) const {
        bool is_first = at.weight == first[0].weight && at.row / OCTET_ROWS == first[0].row / OCTET_ROWS;
        return at.row % OCTET_ROWS + (is_first ? 0 : OCTET_ROWS);
    }
};

// Kind of a launch's weights, for types with kinds: with further bits of the codes or without.
template <class T, bool High>
DEVICE constexpr auto kind_of_octets() {
    if constexpr (kOfKinds<T>) {
        return typename T::Kind(High);
    } else {
        return NoKind{};
    }
}

template <class T, uint32_t kTiles, bool High, class Task>
struct OctetProducts {
    using Kind = decltype(kind_of_octets<T, High>());
    // Bytes of an octet, of a warp's two, of a slot's activations, and of a slot.
    static constexpr uint32_t kOctetBytes = T::octet_bytes(kind_of_octets<T, High>());
    static constexpr uint32_t kWarpBytes = 2 * kOctetBytes;
    static constexpr uint32_t kActBytes = kTiles * (OCTET_CODES_BYTES + OCTET_SCALES_BYTES);
    static constexpr uint32_t kSlotBytes = OCTET_UNITS * kWarpBytes + kActBytes;
    static constexpr uint32_t kFit = OCTET_SLOTS_BYTES / kSlotBytes;
    static constexpr uint32_t kSlots = kFit < OCTET_MAX_SLOTS ? kFit : OCTET_MAX_SLOTS;
    static_assert(kSlots >= 2, "one slot is multiplied while another is filled");
    static constexpr uint32_t kRows = 8 * kTiles;
    // True if codes are used in place.
    static constexpr bool kInPlace = kNibbles<T> && !High;
    // Blocks of columns that are unrolled, so that those of one word share its load, if there are registers.
    static constexpr int kUnroll = kTiles < 4 ? kBlocksOfSpan : kBlocksOfSpan / kTiles;

    const StepTables& step;
    const InputParams& in;
    const Task& task;
    OctetShared& shared;
    // Spans of a tile.
    const uint32_t spans;
    // Batch rows, and the first one of this pass.
    const uint32_t n;
    uint32_t first = 0;
    // Spans that are left to be brought, of all and of their tile; and the next tile.
    uint32_t to_bring = 0, of_tile = 0, next_tile = 0;
    // The slot to be multiplied, and the parity of its phase.
    uint32_t slot = 0, parity = 0;
    // This warp's two octets of `next`, unless that is the first span of a tile.
    const uint8_t* octets[2];
    // Index of this thread's warp, which the compiler sees to be the same for all lanes, and of its lane,
    // which it does not compute again.
    const uint32_t warp, lane;

    DEVICE OctetProducts(const StepTables& step, const InputParams& in, const Task& task, uint32_t n)
        : step(step), in(in), task(task), shared(*reinterpret_cast<OctetShared*>(shared_memory())),
          spans((in.cols + OCTET_COLS - 1) / OCTET_COLS), n(n)
          , warp(__shfl_sync(kWarp, threadIdx.x / kWarpSize, 0)),
          lane(recomputed(threadIdx.x % kWarpSize)) {}

    DEVICE uint32_t n_tiles() const { return (task.units() + OCTET_UNITS - 1) / OCTET_UNITS; }
    // Not kept, so that it takes no registers during the products.
    DEVICE Shares shares() const { return {recomputed(n_tiles() * spans), gridDim.x, 1}; }

    // Slot of a span that is `ahead` of the one to be multiplied, and its address.
    DEVICE uint32_t slot_after(uint32_t ahead) const {
        uint32_t at = slot + ahead;
        return at < kSlots ? at : at - kSlots;
    }
    DEVICE static uint8_t* slot_at(uint32_t i) {
        return shared_memory() + OCTET_FIXED_BYTES + i * kSlotBytes;
    }

    // Finds the octets of this warp's unit in the next tile. Past the last unit they are its once more; the
    // result is not used.
    DEVICE void enter() {
        uint32_t unit = next_tile * OCTET_UNITS + warp, last = task.units() - 1;
        UnitRows rows = UnitRows::of(task, unit < last ? unit : last);
#pragma unroll
        for (int i = 0; i < 2; i++)
            octets[i] = T::row(task.weight(rows.first[i].weight), rows.first[i].row).octets;
        next_tile++;
        of_tile = spans;
    }

    // The place to bring from is span `at` of all.
    DEVICE void enter_at(uint32_t at) {
        next_tile = at / spans;
        enter();
        uint32_t span = at % spans;
        of_tile -= span;
        octets[0] += uint64_t(span) * kOctetBytes;
        octets[1] += uint64_t(span) * kOctetBytes;
    }

    // Starts to copy the next span's octets of this warp, its activations, or both, to a slot.
    template <bool Weights, bool Acts>
    DEVICE void bring(uint32_t to_slot) {
        if (of_tile == 0) enter();
        uint8_t* to = slot_at(to_slot);
        uint8_t* codes = to + OCTET_UNITS * kWarpBytes;
        uint8_t* scales = codes + kTiles * OCTET_CODES_BYTES;
        uint32_t tile = (spans - of_tile) * (OCTET_MAX_ROWS / 8) + first / 8;
        const uint8_t* codes_from = in.rounded.rows + tile * OCTET_CODES_BYTES;
        const uint8_t* scales_from =
            reinterpret_cast<const uint8_t*>(in.rounded.blocks) + tile * OCTET_SCALES_BYTES;
        to += warp * kWarpBytes;
        if (has_bulk_copies()) {
            if (is_elected()) {
                CopyBarrier* full = shared.full + to_slot;
                if (Weights) {
                    // The first warp also expects the activations.
                    barrier_expect(full, kWarpBytes + (warp == 0 ? kActBytes : 0));
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        bulk_copy(full, to + i * kOctetBytes, octets[i], kOctetBytes);
                }
                if (Acts && warp == 0) {
                    bulk_copy(full, codes, codes_from, kTiles * OCTET_CODES_BYTES);
                    bulk_copy(full, scales, scales_from, kTiles * OCTET_SCALES_BYTES);
                }
            }
        } else {
            if (Weights) {
                for (uint32_t i = 16 * (threadIdx.x % kWarpSize); i < kWarpBytes; i += 16 * kWarpSize)
                    cp_async16(to + i, (i < kOctetBytes ? octets[0] : octets[1] - kOctetBytes) + i);
            }
            if (Acts) {
                for (uint32_t i = 16 * threadIdx.x; i < kTiles * OCTET_CODES_BYTES; i += 16 * LINEAR_THREADS)
                    cp_async16(codes + i, codes_from + i);
                for (uint32_t i = 16 * threadIdx.x; i < kTiles * OCTET_SCALES_BYTES; i += 16 * LINEAR_THREADS)
                    cp_async16(scales + i, scales_from + i);
            }
        }
        octets[0] += kOctetBytes;
        octets[1] += kOctetBytes;
        of_tile--;
        to_bring--;
    }

    // Closes a group of copies, even if there was nothing to copy.
    DEVICE static void close_copies() {
        if (!has_bulk_copies()) cp_async_commit();
    }

    // Waits until the copies of the slot to be multiplied are there, and all warps are done with the one
    // before it.
    DEVICE void wait() {
        if (has_bulk_copies()) {
            barrier_wait(shared.full + slot, parity);
        } else {
            cp_async_wait<kSlots - 2>();
        }
        __syncthreads();
    }

    // Adds the products of a slot.
    DEVICE void multiply(float (&sums)[kTiles][4]) const {
        constexpr Kind kind = kind_of_octets<T, High>();
        uint32_t quartet = lane / 4, member = lane % 4;
        const uint8_t* weights = slot_at(slot) + warp * kWarpBytes;
        const uint8_t* acts = slot_at(slot) + OCTET_UNITS * kWarpBytes;
        const uint8_t* quants = acts + kTiles * OCTET_CODES_BYTES + member * 2 * sizeof(float);
        float(&scales)[16][2 * kBlocksOfSpan + 4] = shared.scales[warp];
        const uint8_t* own = weights + lane % 16 / OCTET_ROWS * kOctetBytes;
        typename T::Head head = T::octet_head(T::row_of(own, lane % OCTET_ROWS, kind), lane / 16);
        T::octet_scales(head, lane / 16, kind, scales[lane % 16]);
        __syncwarp();
        typename T::Row rows[2] = {
            T::row_of(weights, quartet, kind), T::row_of(weights + kOctetBytes, quartet, kind)
        };
#pragma unroll(kUnroll)
        for (uint32_t block = 0; block < kBlocksOfSpan; block++) {
            typename T::Codes codes[2];
            float of_block[2];
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                typename T::Part part = part_of<T>(rows[half], block, member, kind);
                const float* of_row = scales[quartet + half * OCTET_ROWS];
                if constexpr (kInPlace) {
                    T::nibbles(part, block % 2, codes[half].words);
                } else {
                    codes[half] = codes_of<T>(part, block, member, kind);
                }
                if constexpr (kTwoScales<T>) {
                    codes[half].scales[0] = of_row[2 * block];
                    codes[half].scales[1] = of_row[2 * block + 1];
                } else {
                    of_block[half] = of_row[block];
                }
            }
#pragma unroll
            for (uint32_t tile = 0; tile < kTiles; tile++) {
                // Two at a time, for which there are registers.
                if (tile > 0 && tile % 2 == 0 && first + 8 * tile >= n) break;
                uint2 q = load8(acts + tile * OCTET_CODES_BYTES + block * 256 + lane * 8);
                uint32_t b[2] = {q.x, q.y};
                uint2 of_rows = load8(quants + tile * OCTET_SCALES_BYTES + block * 8 * sizeof(float));
                if constexpr (kTwoScales<T>) {
                    add_block<T>(sums[tile], codes[0], codes[1], b, make_uint4(of_rows.x, 0, of_rows.y, 0));
                } else {
                    float of_acts[2] = {__uint_as_float(of_rows.x), __uint_as_float(of_rows.y)};
                    add_bytes<kOffsets<T>>(sums[tile], codes[0].words, codes[1].words, of_block, b, of_acts);
                }
            }
        }
        if constexpr (kOffsets<T>) add_minimums(sums, scales, acts + kTiles * OCTET_CODES_BYTES);
    }

    // Adds the products of the minimums of all blocks of a span, 8 integers per row, with the scaled sums of
    // the activations, as two tf32 of 11 bits each.
    DEVICE void add_minimums(
        float (&sums)[kTiles][4], const float (&scales)[16][2 * kBlocksOfSpan + 4], const uint8_t* quants
    ) const {
        static_assert(kBlocksOfSpan == 8, "columns of the first operand");
        uint32_t quartet = lane / 4, member = lane % 4;
        // Columns `member` and `member + 4` of the product are two neighbouring blocks.
        const float *upper = scales[quartet] + kBlocksOfSpan, *lower = scales[quartet + 8] + kBlocksOfSpan;
        uint2 of_upper = load8(upper + 2 * member), of_lower = load8(lower + 2 * member);
        uint32_t a[4] = {of_upper.x, of_lower.x, of_upper.y, of_lower.y};
        float by[2] = {upper[kBlocksOfSpan], lower[kBlocksOfSpan]};
        quants += (8 * kBlocksOfSpan + (8 * member + quartet) * 2) * sizeof(float);
#pragma unroll
        for (uint32_t tile = 0; tile < kTiles; tile++) {
            if (tile > 0 && tile % 2 == 0 && first + 8 * tile >= n) break;
            uint2 of_rows = load8(quants + tile * OCTET_SCALES_BYTES);
            uint32_t high[2] = {of_rows.x & 0xffffe000u, of_rows.y & 0xffffe000u};
            uint32_t low[2] = {
                __float_as_uint(__uint_as_float(of_rows.x) - __uint_as_float(high[0])),
                __float_as_uint(__uint_as_float(of_rows.y) - __uint_as_float(high[1]))
            };
            float products[4] = {};
            mma_tf32_16x8x8(products, a, low);
            mma_tf32_16x8x8(products, a, high);
#pragma unroll
            for (int i = 0; i < 4; i++) sums[tile][i] = fmaf(by[i / 2], products[i], sums[tile][i]);
        }
    }

    // Place of a block's sums of a tile, for the 8 batch rows from 8 `eight` on: a block leaves at most two
    // tiles in parts, its first and its last one, and others whole.
    DEVICE float4* place(const Shares& shares, uint32_t block, uint32_t tile, uint32_t eight) const {
        uint32_t which = shares.begin(block) / spans == tile ? 0 : 1;
        uint32_t at = (2 * block + which) * (OCTET_MAX_ROWS / 8) + eight;
        return reinterpret_cast<float4*>(in.rounded.sums) + at * LINEAR_THREADS + threadIdx.x;
    }

    // Leaves the sums of a tile, of which this block has no more spans. The last of its blocks adds them up
    // and finishes it. Each thread reads what the same threads of all blocks have left.
    DEVICE void finish(const float (&sums)[kTiles][4], uint32_t tile) {
        Shares of_blocks = shares();
        uint32_t begin = of_blocks.owner(tile * spans), end = of_blocks.owner((tile + 1) * spans - 1);
#pragma unroll
        for (uint32_t t = 0; t < kTiles; t++)
            *place(of_blocks, blockIdx.x, tile, first / 8 + t) =
                make_float4(sums[t][0], sums[t][1], sums[t][2], sums[t][3]);
        uint32_t* arrived = in.rounded.arrived + (first > 0 ? n_tiles() : 0) + tile;
        if (begin < end && !comes_last(arrived, end - begin + 1, &shared.word)) return;
        uint32_t quartet = threadIdx.x % kWarpSize / 4, member = threadIdx.x % 4;
#pragma unroll 1
        for (uint32_t eight = first / 8; 8 * eight < n && 8 * eight < first + kRows; eight++) {
            float4 all = *place(of_blocks, begin, tile, eight);
            for (uint32_t block = begin + 1; block <= end; block++) {
                float4 more = *place(of_blocks, block, tile, eight);
                all = make_float4(all.x + more.x, all.y + more.y, all.z + more.z, all.w + more.w);
            }
            // All warps are done with the scales, or with the sums before.
            __syncthreads();
            uint32_t row = 16 * warp + quartet;
            shared.sums[2 * member][row] = all.x;
            shared.sums[2 * member + 1][row] = all.y;
            shared.sums[2 * member][row + OCTET_ROWS] = all.z;
            shared.sums[2 * member + 1][row + OCTET_ROWS] = all.w;
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < 8 * kRowsOfTile; i += LINEAR_THREADS) {
                uint32_t of_tile = i % kRowsOfTile / 16, slot = i % 16, m = 8 * eight + i / kRowsOfTile;
                uint32_t unit = tile * OCTET_UNITS + of_tile;
                if (unit >= task.units() || m >= n) continue;
                UnitRows rows = UnitRows::of(task, unit);
                const float* of_unit = shared.sums[i / kRowsOfTile] + 16 * of_tile;
                auto y = [&](uint32_t of_slot) {
                    WeightRow at = task.row(unit, of_slot);
                    return finished<T>(task, at, at.exists() ? of_unit[rows.place(at)] : 0.0f, {}, 1.0f);
                };
                float own = y(slot), other = y(slot ^ 8);
                if (task.row(unit, slot).exists())
                    task.finish(unit, slot, m, own, other, task.late(unit, slot, m, step.rows[m]));
            }
        }
    }

    DEVICE void run() {
        if (has_bulk_copies()) {
            if (threadIdx.x == 0) {
#pragma unroll
                for (uint32_t i = 0; i < kSlots; i++) barrier_init(shared.full + i, OCTET_UNITS);
                barriers_are_there();
            }
            __syncthreads();
        }
        Shares of_blocks = shares();
        uint32_t begin = of_blocks.begin(blockIdx.x), all = of_blocks.begin(blockIdx.x + 1) - begin;
        // Weights of the first slots, or their activations.
        auto bring_weights = [&] {
            enter_at(begin);
            to_bring = all;
#pragma unroll 1
            for (uint32_t i = 0; i < kSlots - 1 && to_bring > 0; i++) bring<true, false>(slot_after(i));
        };
        if (n > 0) bring_weights();
        let_next_kernel_start();
        wait_for_previous_kernel();
        for (; first < n; first += kRows) {
            if (first > 0) bring_weights();
            enter_at(begin);
            to_bring = all;
#pragma unroll 1
            for (uint32_t i = 0; i < kSlots - 1; i++) {
                if (to_bring > 0) bring<false, true>(slot_after(i));
                close_copies();
            }
            SpanAt now(begin, spans);
            for (uint32_t left = all; left > 0; now.tile++, now.span = 0) {
                uint32_t n_spans = spans - now.span;
                if (n_spans > left) n_spans = left;
                left -= n_spans;
                float sums[kTiles][4] = {};
#pragma unroll 1
                for (; n_spans > 0; n_spans--) {
                    wait();
                    if (to_bring > 0) bring<true, true>(slot_after(kSlots - 1));
                    close_copies();
                    multiply(sums);
                    if (++slot == kSlots) {
                        slot = 0;
                        parity ^= 1;
                    }
                }
                finish(sums, now.tile);
            }
            // All warps are done with the last slots, and none of them is being filled.
            if (!has_bulk_copies()) cp_async_wait<0>();
            __syncthreads();
        }
    }
};

template <class T, uint32_t kTiles, class Task>
DEVICE void run_linear_octets(const StepTables& step, const InputParams& in, const Task& task) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    // A block of Turing has no room for the ring, so the host launches other kernels there.
    __trap();
#else
    // The tables of the step are there before its first kernel starts.
    uint32_t n = in.of_outputs ? step.counts->outputs : step.counts->rows;
    if constexpr (kHighBits<T>) {
        if (T::has_high(T::kind(task.weight(0))))
            return OctetProducts<T, kTiles, true, Task>(step, in, task, n).run();
    }
    OctetProducts<T, kTiles, false, Task>(step, in, task, n).run();
#endif
}
