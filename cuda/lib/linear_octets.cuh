// Linear layers on tensor cores for 2 to OCTET_MAX_ROWS rows of activations quantised by block, and weights
// in octets: int8 mma.sync over codes that are streamed through shared memory.
//
// A tile is OCTET_UNITS units of 16 weight rows, two octets each, times all batch rows (two passes if there
// are more than 8 kOctetTiles<T>). A span is OCTET_COLS columns of it. The spans of all tiles are divided
// evenly among the blocks, one contiguous range each (stream-K), so that every multiprocessor reads the same
// number of bytes for any shape. Blocks leave their sums of a tile in memory, and the last one to arrive adds
// them up in the order of columns. The division depends on the weights and on
// the GPU, not on the step, and sums are added block by block of columns: so the bits of a row depend neither
// on the number of rows nor on the other rows.
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

// Most tiles of 8 batch rows at once, so that two slots fit in shared memory and no register spills.
template <class T>
constexpr uint32_t kOctetTiles = kTwoScales<T> ? 4 : 8;

constexpr uint32_t kBlocksOfSpan = OCTET_COLS / QUANT_COLS, kRowsOfTile = 16 * OCTET_UNITS;
static_assert(OCTET_UNITS == LINEAR_THREADS / kWarpSize, "a warp has a unit");

// Start of a block's shared memory, before the slots.
struct OctetShared {
    CopyBarrier full[OCTET_MAX_SLOTS];
    // Flags the last block of a tile.
    uint32_t word;
    uint32_t reserved[LINEAR_HEADER_BYTES / 4 - 2 * OCTET_MAX_SLOTS - 1];
    union {
        // Scale and offset, or the scales of both halves, of each block of columns of a warp's rows, two
        // blocks at a time. The pitch lets lanes write to different banks.
        float4 scales[OCTET_UNITS][16][kBlocksOfSpan / 2 + 1];
        // Sums of 8 batch rows, one after the other, with a pitch for the same reason.
        float sums[8][kRowsOfTile + 4];
    };
};
static_assert(sizeof(OctetShared) == OCTET_FIXED_BYTES, "the host asks for as much");

DEVICE void set_scales(AffineWords& codes, float2 of) { codes.affine = {of.x, of.y}; }
DEVICE void set_scales(ScaledCodes& codes, float2 of) {
    codes.scales[0] = of.x;
    codes.scales[1] = of.y;
}

// add_block (lib/linear_codes.cuh) with unsigned bytes.
DEVICE void add_bytes(
    float (&to)[4], const AffineWords& upper, const AffineWords& lower, const uint32_t (&b)[2], uint4 quants
) {
    uint32_t a[4] = {upper.words[0], lower.words[0], upper.words[1], lower.words[1]};
    float scales[2] = {__uint_as_float(quants.x), __uint_as_float(quants.z)};
    float of_acts[2] = {__uint_as_float(quants.y), __uint_as_float(quants.w)};
    int32_t bits[4];
    mma_u8_16x8x32(bits, a, b, kSumBits);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Affine& affine = i < 2 ? upper.affine : lower.affine;
        to[i] = fmaf(affine.scale * scales[i % 2], sum_of_bits(bits[i]), to[i]);
        to[i] = fmaf(affine.offset, of_acts[i % 2], to[i]);
    }
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

template <class T, uint32_t kTiles, class Task, class Kind>
struct OctetProducts {
    static constexpr uint32_t kActBytes = kTiles * (OCTET_CODES_BYTES + OCTET_SCALES_BYTES);
    static constexpr uint32_t kRows = 8 * kTiles;
    // Blocks of columns that are unrolled, so that those of one word share its load, if there are registers.
    static constexpr int kUnroll = kTiles < 4 ? kBlocksOfSpan : kBlocksOfSpan / kTiles;

    const StepTables& step;
    const InputParams& in;
    const Task& task;
    const Kind kind;
    OctetShared& shared;
    // Bytes of an octet, slots of the ring, spans of a tile.
    uint32_t octet_bytes, slots, spans;
    // Batch rows, and the first one of this pass.
    const uint32_t n;
    uint32_t first = 0;
    // The next span to bring; the next one to multiply, with its slot and the parity of that slot's phase;
    // and the number of spans that are left to be multiplied.
    SpanAt next, now;
    uint32_t slot = 0, parity = 0, left = 0;
    // First octets of this warp's unit in the tile of `next`.
    const uint8_t* octets[2];
    // Index of this thread's warp, which the compiler sees to be the same for all lanes.
    const uint32_t warp;

    DEVICE OctetProducts(
        const StepTables& step, const InputParams& in, const Task& task, const Kind& kind, uint32_t n
    )
        : step(step), in(in), task(task), kind(kind),
          shared(*reinterpret_cast<OctetShared*>(shared_memory())), octet_bytes(T::octet_bytes(kind)),
          spans(in.cols / OCTET_COLS), n(n), next(0, 1), now(0, 1),
          warp(__shfl_sync(kWarp, threadIdx.x / kWarpSize, 0)) {
        slots = OCTET_SLOTS_BYTES / slot_bytes();
        if (slots > OCTET_MAX_SLOTS) slots = OCTET_MAX_SLOTS;
    }

    DEVICE uint32_t n_tiles() const { return (task.units() + OCTET_UNITS - 1) / OCTET_UNITS; }
    // Not kept, so that it takes no registers during the products.
    DEVICE Shares shares() const { return {recomputed(n_tiles() * spans), gridDim.x, 1}; }

    DEVICE uint32_t slot_bytes() const { return 2 * OCTET_UNITS * octet_bytes + kActBytes; }
    // Slot of a span that is `ahead` of the one to be multiplied, and its address.
    DEVICE uint32_t slot_of(uint32_t ahead) const {
        uint32_t at = slot + ahead;
        return at < slots ? at : at - slots;
    }
    DEVICE uint8_t* slot_at(uint32_t i) const {
        return shared_memory() + OCTET_FIXED_BYTES + i * slot_bytes();
    }

    // Finds the octets of this warp's unit in a tile. Past the last unit they are its once more; the result
    // is not used.
    DEVICE void enter(uint32_t tile) {
        uint32_t unit = tile * OCTET_UNITS + warp, last = task.units() - 1;
        UnitRows rows = UnitRows::of(task, unit < last ? unit : last);
#pragma unroll
        for (int i = 0; i < 2; i++)
            octets[i] = T::row(task.weight(rows.first[i].weight), rows.first[i].row).octets;
    }

    // Starts to copy the weights of a span, of which this warp has two octets.
    DEVICE void bring_weights(const SpanAt& at, uint32_t to_slot) {
        uint32_t lane = threadIdx.x % kWarpSize;
        uint8_t* to = slot_at(to_slot) + 2 * warp * octet_bytes;
        uint64_t from = uint64_t(at.span) * octet_bytes;
        if (has_bulk_copies()) {
            if (lane == 0) {
                CopyBarrier* full = shared.full + to_slot;
                // The first warp also expects the activations.
                barrier_expect(full, 2 * octet_bytes + (warp == 0 ? kActBytes : 0));
#pragma unroll
                for (int i = 0; i < 2; i++)
                    bulk_copy(full, to + i * octet_bytes, octets[i] + from, octet_bytes);
            }
        } else {
            for (uint32_t i = 16 * lane; i < 2 * octet_bytes; i += 16 * kWarpSize) {
                const uint8_t* of = i < octet_bytes ? octets[0] : octets[1] - octet_bytes;
                cp_async16(to + i, of + from + i);
            }
        }
    }

    // The same for the activations of this pass.
    DEVICE void bring_acts(const SpanAt& at, uint32_t to_slot) {
        uint8_t* codes = slot_at(to_slot) + 2 * OCTET_UNITS * octet_bytes;
        uint8_t* scales = codes + kTiles * OCTET_CODES_BYTES;
        uint32_t tile = at.span * (OCTET_MAX_ROWS / 8) + first / 8;
        const uint8_t* codes_from = in.rounded.rows + tile * OCTET_CODES_BYTES;
        const uint8_t* scales_from =
            reinterpret_cast<const uint8_t*>(in.rounded.blocks) + tile * OCTET_SCALES_BYTES;
        if (has_bulk_copies()) {
            if (threadIdx.x == 0) {
                CopyBarrier* full = shared.full + to_slot;
                bulk_copy(full, codes, codes_from, kTiles * OCTET_CODES_BYTES);
                bulk_copy(full, scales, scales_from, kTiles * OCTET_SCALES_BYTES);
            }
        } else {
            for (uint32_t i = 16 * threadIdx.x; i < kTiles * OCTET_CODES_BYTES; i += 16 * LINEAR_THREADS)
                cp_async16(codes + i, codes_from + i);
            for (uint32_t i = 16 * threadIdx.x; i < kTiles * OCTET_SCALES_BYTES; i += 16 * LINEAR_THREADS)
                cp_async16(scales + i, scales_from + i);
        }
    }

    // Advances to the next span to bring; copies are in groups even if there was nothing to copy.
    DEVICE void brought() {
        if (!has_bulk_copies()) cp_async_commit();
        next.go_on(spans);
    }

    // Waits until the copies of the slot to be multiplied are there, and all warps are done with the one
    // before it.
    DEVICE void wait() {
        if (has_bulk_copies()) {
            barrier_wait(shared.full + slot, parity);
        } else if (slots == 2) {
            cp_async_wait<0>();
        } else if (slots == 3) {
            cp_async_wait<1>();
        } else {
            cp_async_wait<2>();
        }
        __syncthreads();
    }

    // Adds the products of a slot. Types of which only some kinds have further bits have code without them.
    DEVICE void multiply(float (&sums)[kTiles][4]) const {
        if constexpr (kHighBits<T>) {
            if (!T::has_high(kind)) return multiply_as<kNibbles<T>>(sums, Kind{});
        }
        multiply_as<false>(sums, kind);
    }

    template <bool InPlace>
    DEVICE void multiply_as(float (&sums)[kTiles][4], const Kind& kind) const {
        uint32_t lane = threadIdx.x % kWarpSize, quartet = lane / 4, member = lane % 4;
        const uint8_t* weights = slot_at(slot) + 2 * warp * octet_bytes;
        const uint8_t* acts = slot_at(slot) + 2 * OCTET_UNITS * octet_bytes;
        const uint8_t* quants = acts + kTiles * OCTET_CODES_BYTES + member * 2 * sizeof(BlockQuant);
        auto row_at = [&](uint32_t row) {
            return T::row_of(weights + row / OCTET_ROWS * octet_bytes, row % OCTET_ROWS, kind);
        };
        float4(&scales)[16][kBlocksOfSpan / 2 + 1] = shared.scales[warp];
        float2 own[kBlocksOfSpan / 2];
        T::octet_scales(row_at(lane % 16), lane / 16, own);
        if constexpr (InPlace) {
            own[1].x *= 0.0625f;
            own[3].x *= 0.0625f;
        }
#pragma unroll
        for (uint32_t i = 0; i < kBlocksOfSpan / 4; i++) {
            float2 a = own[2 * i], b = own[2 * i + 1];
            scales[lane % 16][lane / 16 * (kBlocksOfSpan / 4) + i] = make_float4(a.x, a.y, b.x, b.y);
        }
        __syncwarp();
        typename T::Row rows[2] = {row_at(quartet), row_at(quartet + OCTET_ROWS)};
#pragma unroll(kUnroll)
        for (uint32_t block = 0; block < kBlocksOfSpan; block++) {
            typename T::Codes codes[2];
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                typename T::Part part = part_of<T>(rows[half], block, member, kind);
                if constexpr (InPlace) {
                    T::nibbles(part, block % 2, codes[half].words);
                } else {
                    codes[half] = codes_of<T>(part, block, member, kind);
                }
                float4 of_two = scales[quartet + half * OCTET_ROWS][block / 2];
                set_scales(codes[half], block % 2 ? float2{of_two.z, of_two.w} : float2{of_two.x, of_two.y});
            }
#pragma unroll
            for (uint32_t tile = 0; tile < kTiles; tile++) {
                // Two at a time, for which there are registers.
                if (tile > 0 && tile % 2 == 0 && first + 8 * tile >= n) break;
                uint2 q = load8(acts + tile * OCTET_CODES_BYTES + block * 256 + lane * 8);
                uint32_t b[2] = {q.x, q.y};
                uint4 of_rows = load16(quants + tile * OCTET_SCALES_BYTES + block * 8 * sizeof(BlockQuant));
                if constexpr (InPlace) {
                    add_bytes(sums[tile], codes[0], codes[1], b, of_rows);
                } else {
                    add_block<T>(sums[tile], codes[0], codes[1], b, of_rows);
                }
            }
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
#pragma unroll 1
                for (uint32_t i = 0; i < slots; i++) barrier_init(shared.full + i, OCTET_UNITS);
                barriers_are_there();
            }
            __syncthreads();
        }
        Shares of_blocks = shares();
        uint32_t begin = of_blocks.begin(blockIdx.x), all = of_blocks.begin(blockIdx.x + 1) - begin;
        // Weights of the first slots.
        auto bring_first = [&](SpanAt at) {
            enter(at.tile);
#pragma unroll 1
            for (uint32_t i = 0; i + 1 < slots && i < all; i++) {
                if (i > 0 && at.span == 0) enter(at.tile);
                bring_weights(at, slot_of(i));
                at.go_on(spans);
            }
        };
        if (n > 0) bring_first({begin, spans});
        let_next_kernel_start();
        wait_for_previous_kernel();
        for (; first < n; first += kRows) {
            now = next = SpanAt(begin, spans);
            left = all;
            if (first > 0) bring_first(next);
#pragma unroll 1
            for (uint32_t i = 0; i + 1 < slots; i++) {
                if (i < all) bring_acts(next, slot_of(i));
                brought();
            }
            float sums[kTiles][4] = {};
#pragma unroll 1
            while (left > 0) {
                wait();
                if (left >= slots) {
                    if (next.span == 0) enter(next.tile);
                    bring_weights(next, slot_of(slots - 1));
                    bring_acts(next, slot_of(slots - 1));
                }
                brought();
                multiply(sums);
                if (++slot == slots) {
                    slot = 0;
                    parity ^= 1;
                }
                uint32_t tile = now.tile;
                now.go_on(spans);
                left--;
                if (now.tile == tile && left > 0) continue;
                finish(sums, tile);
#pragma unroll
                for (uint32_t i = 0; i < 4 * kTiles; i++) sums[i / 4][i % 4] = 0.0f;
            }
            // All warps are done with the last slots, and none of them is being filled.
            if (!has_bulk_copies()) cp_async_wait<0>();
            __syncthreads();
        }
    }
};

template <class T, class Task>
DEVICE void run_linear_octets(const StepTables& step, const InputParams& in, const Task& task) {
    const auto kind = kind_of<T>(task.weight(0));
    using Kind = decltype(kind_of<T>(task.weight(0)));
    // The tables of the step are there before its first kernel starts.
    uint32_t n = in.of_outputs ? step.counts->outputs : step.counts->rows;
    if (n <= 8) {
        OctetProducts<T, 1, Task, Kind>(step, in, task, kind, n).run();
    } else if (n <= 16) {
        OctetProducts<T, 2, Task, Kind>(step, in, task, kind, n).run();
    } else if (n <= 32) {
        OctetProducts<T, 4, Task, Kind>(step, in, task, kind, n).run();
    } else {
        OctetProducts<T, kOctetTiles<T>, Task, Kind>(step, in, task, kind, n).run();
    }
}
