// The products of a linear kernel: rows of weights against up to M rows of activations in shared memory.
//
// 2^lanes_log2 lanes share a row of weights, so a warp has 4, 2 or 1 rows at a time, its slots; the lanes of
// a row read neighbouring chunks. What the rows are, and what becomes of the products, is the stage's: a Task
// says
//
//   units()                    how many sets of rows there are, one a warp at a time
//   row(unit, slot)            a WeightRow: which row of which weight the slot has, if any
//   weight(i)                  weight i
//   around(unit, slot, row, step_row)  what finish reads of memory, which may be on its way before y is there
//   late(unit, slot, row, step_row)  the same, read when finish wants it
//   finish(unit, slot, row, y, other, around) takes y = W n for a row of the step; `other` is that of the
//   slot that lies half of the slots away. One lane a slot calls it for each row, where the slot has a row of
//   weights
//
// Blocks are persistent: at most two a multiprocessor, each with the input normed once. Loads run one batch
// of kUnroll chunks ahead of the products, across rows, and the first batch is on its way before the previous
// kernel's results are waited for.
#pragma once

#include "input.cuh"

// A row of one of a task's weights, if the slot has one.
struct WeightRow {
    static constexpr uint32_t kNone = 0xffffffffu;
    uint32_t weight = 0, row = kNone;
    DEVICE bool exists() const { return row != kNone; }
};

// One of two weights of the same columns. It is a copy: reading parameters through an address that depends on
// the thread would be a round trip to memory.
DEVICE LinearParams select(bool first, const LinearParams& a, const LinearParams& b) {
    return {first ? a.data : b.data,
            first ? a.bias : b.bias,
            first ? a.tensor_scale : b.tensor_scale,
            first ? a.factor : b.factor,
            first ? a.rows : b.rows,
            b.chunks};
}

// y of a slot, from the sum of its products with a row of activations.
template <class T, class Task>
DEVICE float finished(const Task& task, const WeightRow& at, typename T::Acc sum, const RowQuant& quant) {
    if (!at.exists()) return 0.0f;
    const LinearParams w = task.weight(at.weight);
    float y;
    if constexpr (T::kInts) {
        if constexpr (T::kChunkSums) {
            y = sum / quant.scale;
        } else {
            y = static_cast<float>(sum - quant.sum) / quant.scale * w.tensor_scale;
        }
    } else {
        y = sum;
    }
    y *= w.factor;
    return w.bias ? y + w.bias[at.row] : y;
}

// Of M rows' sums, a lane's in the order of acts_at, that of one row over all lanes of a slot: of row
// sub / (lanes / M). Sums are joined in the order of reduce_lanes; but a lane goes on with half of what it
// had, the rows whose number has the bit that the lane has, and gives the other half away.
template <int M, class Acc>
DEVICE Acc reduce_rows(Acc (&sums)[M], uint32_t lanes, uint32_t sub) {
    if constexpr (M == 1) {
        return reduce_lanes<Sum>(sums[0], static_cast<int>(lanes));
    } else {
        static_assert(M == 8, "three bits");
        uint32_t mask = lanes / 2;
#pragma unroll
        for (uint32_t half = M / 2; half > 0; half /= 2, mask /= 2) {
            // At places from `half` on are rows with the bit `half`, unless chunks of this lane have it.
            bool upper = ((sub & mask) != 0) != ((sub & half) != 0);
#pragma unroll
            for (uint32_t i = 0; i < half; i++) {
                Acc keep = upper ? sums[half + i] : sums[i], give = upper ? sums[i] : sums[half + i];
                sums[i] = keep + __shfl_xor_sync(kWarp, give, mask);
            }
        }
        return reduce_lanes<Sum>(sums[0], static_cast<int>(lanes) / M);
    }
}

template <class T, int M, class Task>
DEVICE void run_linear(const StepTables& step, const InputParams& in, uint32_t chunks, const Task& task) {
    // Several rows keep the multipliers busy; a single one is all loads.
    constexpr int kUnroll = M == 1 ? T::kUnroll : T::kRowsUnroll;
    uint32_t lanes = 1u << in.lanes_log2, lane = threadIdx.x % kWarpSize;
    uint32_t slot = lane >> in.lanes_log2, sub = lane & (lanes - 1);
    uint32_t warps = blockDim.x / kWarpSize, stride = gridDim.x * warps;
    // Blocks first, so that every block has as many as any other, or one less a warp.
    uint32_t first_unit = threadIdx.x / kWarpSize * gridDim.x + blockIdx.x, units = task.units();

    // Several rows have no registers for two batches: each chunk's place is filled again as soon as it has
    // been multiplied.
    constexpr bool kTwoBatches = M == 1;
    typename T::Chunk now[kUnroll], next[kTwoBatches ? kUnroll : 1];
    auto load = [&](typename T::Chunk(&to)[kUnroll], uint32_t unit, uint32_t chunk) {
        if (unit >= units) return;
        WeightRow at = task.row(unit, slot);
        if (!at.exists()) return;
        typename T::Row row = T::row(task.weight(at.weight), at.row);
#pragma unroll
        for (int u = 0; u < kUnroll; u++) {
            if (chunk + u * lanes < chunks) to[u] = T::load(row, chunk + u * lanes);
        }
    };
    load(now, first_unit, sub);
    uint32_t n_rows = in.of_outputs ? step.counts->outputs : step.counts->rows;
    if constexpr (M == 1) {
        if (n_rows > 0) prefetch_norm<T::kBlockQuads>(in);
    }
    let_next_kernel_start();
    wait_for_previous_kernel();

    const uint8_t* acts = shared_memory() + LINEAR_HEADER_BYTES;
    for (uint32_t first = 0; first < n_rows; first += M) {
        uint32_t n = n_rows - first < M ? n_rows - first : M;
        load_rows<T, M, M == 1 ? T::kBlockQuads : kRowsQuads>(step, in, chunks, first, n);
        // That there is a unit is compared again, not remembered in a register meanwhile.
        first_unit = recomputed(first_unit);
        if (first > 0) load(now, first_unit, sub);
        for (uint32_t unit = first_unit; unit < units; unit += stride) {
            typename T::Acc sums[M] = {};
            WeightRow at = task.row(unit, slot);
            for (uint32_t base = 0; base < chunks; base += kUnroll * lanes) {
                bool last = base + kUnroll * lanes >= chunks;
                uint32_t next_unit = last ? unit + stride : unit, ahead = last ? 0 : base + kUnroll * lanes;
                if constexpr (kTwoBatches) load(next, next_unit, ahead + sub);
                WeightRow of_next = next_unit < units ? task.row(next_unit, slot) : WeightRow{};
                typename T::Row row = T::row(task.weight(of_next.weight), of_next.exists() ? of_next.row : 0);
#pragma unroll
                for (int u = 0; u < kUnroll; u++) {
                    uint32_t chunk = base + u * lanes + sub;
                    if (at.exists() && chunk < chunks) T::template dot<M>(sums, now[u], acts, chunk, chunks);
                    if (kTwoBatches) continue;
                    chunk = ahead + u * lanes + sub;
                    if (of_next.exists() && chunk < chunks) now[u] = T::load(row, chunk);
                }
                if constexpr (kTwoBatches) {
#pragma unroll
                    for (int u = 0; u < kUnroll; u++) now[u] = next[u];
                }
            }
            // The host gives a row 8 lanes at least.
            uint32_t lanes_of_row = lanes / M, m = M == 1 ? 0 : sub / lanes_of_row;
            RowQuant quant = row_quants()[m];
            float y = finished<T>(task, at, reduce_rows<M>(sums, lanes, sub), quant);
            float other = __shfl_xor_sync(kWarp, y, kWarpSize / 2);
            if (M == 1 ? sub != 0 : sub % lanes_of_row != 0 || m >= n) continue;
            if (!at.exists()) continue;
            uint32_t r = first + m;
            task.finish(unit, slot, r, y, other, task.late(unit, slot, r, step.rows[r]));
        }
        __syncthreads();
        if (M == 1 && first + 1 < n_rows) prefetch_norm<T::kBlockQuads>(in);
    }
    // More rows have more work for a byte, and no registers to spare.
    if constexpr (M == 1) prefetch_next(step);
}
