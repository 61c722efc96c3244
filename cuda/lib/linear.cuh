// Main loop of a linear kernel: rows of weights times up to M rows of activations in shared memory.
//
// 2^lanes_log2 lanes share a row of weights, so a warp has 4, 2 or 1 rows at a time (slots); the lanes of a
// row read neighbouring chunks. The stage defines the rows and uses the products, through a Task:
//
//   units()                       number of sets of rows; a warp takes one set at a time
//   row(unit, slot)               the slot's WeightRow: index of the weight and of its row, or none
//   weight(i)                     weight i
//   around(unit, slot, row, step_row)  loads what finish needs, possibly before y is ready
//   late(unit, slot, row, step_row)    the same, loaded just before finish
//   finish(unit, slot, row, y, other, around)  uses y = W n of one batch row; `other` is the y of the slot
//                                 half the slots away. Called by one lane per slot and batch row that exist;
//                                 with several batch rows, by different lanes
//
// Blocks are persistent: at most two per multiprocessor, each with the input normalised once. Weight loads
// run one batch of kUnroll chunks ahead of the products, across rows, and the first batch is issued before
// the kernel waits for its predecessor.
//
// Float activations that do not fit in shared memory are loaded in parts. A warp then has at most PART_UNITS
// units, and each thread keeps its partial sums after the activations, from one part to the next. Kernels
// without `Parts` are only launched if a whole row fits.
#pragma once

#include "input.cuh"

// A row of one of a task's weights, or none.
struct WeightRow {
    static constexpr uint32_t kNone = 0xffffffffu;
    uint32_t weight = 0, row = kNone;
    DEVICE bool exists() const { return row != kNone; }
};

// Returns one of two weights with the same columns, as a copy: indexing the parameters by thread would cost a
// round trip to local memory.
DEVICE LinearParams select(bool first, const LinearParams& a, const LinearParams& b) {
    return {first ? a.data : b.data,
            first ? a.bias : b.bias,
            first ? a.tensor_scale : b.tensor_scale,
            first ? a.factor : b.factor,
            first ? a.rows : b.rows,
            b.chunks,
            b.kind,
            0};
}

// Scale of a slot's row of weights, for types that have one. Loaded before the products, so that its latency
// is hidden.
template <class T, class Task>
DEVICE float row_scale(const Task& task, const WeightRow& at) {
    if constexpr (kRowScales<T>) {
        if (at.exists()) return T::scale(task.weight(at.weight), at.row);
    }
    return 1.0f;
}

// y of a slot, from the sum of its products with one row of activations.
template <class T, class Task>
DEVICE float finished(
    const Task& task, const WeightRow& at, typename T::Acc sum, const RowQuant& quant, float row_scale
) {
    if (!at.exists()) return 0.0f;
    const LinearParams w = task.weight(at.weight);
    float y;
    if constexpr (T::kInts && !kByBlock<T>) {
        if constexpr (T::kChunkSums) {
            y = sum / quant.scale;
        } else {
            y = static_cast<float>(sum - quant.sum) / quant.scale * w.tensor_scale;
        }
    } else {
        y = sum;
    }
    if constexpr (kRowScales<T>) y *= row_scale;
    y *= w.factor;
    return w.bias ? y + w.bias[at.row] : y;
}

// Kind of a launch's weights, for types with kinds.
template <class T>
DEVICE auto kind_of(const LinearParams& w) {
    if constexpr (kOfKinds<T>) {
        return T::kind(w);
    } else {
        return NoKind{};
    }
}

// `sub` is the lane's first chunk; its others follow at a distance of `lanes` chunks (8 or more).
template <class T, int M, class Kind>
DEVICE void multiply(
    typename T::Acc (&sums)[M], const typename T::Chunk& chunk, const uint8_t* acts, uint32_t at,
    uint32_t sub, uint32_t chunks, const Kind& kind
) {
    if constexpr (kByBlock<T>) {
        T::dot(sums[0], chunk, acts, at, sub, chunks, kind);
    } else if constexpr (kOfKinds<T>) {
        T::template dot<M>(sums, chunk, acts, at, chunks, kind);
    } else {
        T::template dot<M>(sums, chunk, acts, at, chunks);
    }
}

template <class T, int M, bool Parts = true, class Task>
DEVICE void run_linear(const StepTables& step, const InputParams& in, uint32_t chunks, const Task& task) {
    // Several rows keep the ALUs busy; a single row is bound by loads.
    constexpr int kUnroll = M == 1 ? T::kUnroll : T::kRowsUnroll;
    uint32_t lanes = 1u << in.lanes_log2, lane = threadIdx.x % kWarpSize;
    uint32_t slot = lane >> in.lanes_log2, sub = lane & (lanes - 1);
    uint32_t warps = blockDim.x / kWarpSize, stride = gridDim.x * warps;
    // Block index varies fastest, so that blocks differ by at most one unit per warp.
    uint32_t first_unit = threadIdx.x / kWarpSize * gridDim.x + blockIdx.x, units = task.units();

    // Chunks of the part in shared memory.
    constexpr bool kParts = Parts && !T::kInts;
    uint32_t part_chunks = kParts ? in.part_chunks : chunks;
    uint32_t begin = 0, end = part_chunks;
    typename T::Chunk now[kUnroll], next[kUnroll];
    // The lane's row of a unit is looked up again for each batch, or kept where the products leave registers
    // free.
    [[maybe_unused]] typename T::Row kept = {};
    [[maybe_unused]] bool has_row = false;
    auto load = [&](typename T::Chunk(&to)[kUnroll], uint32_t unit, uint32_t chunk, bool is_new) {
        if constexpr (kByBlock<T>) {
            if (is_new) {
                WeightRow at = unit < units ? task.row(unit, slot) : WeightRow{};
                has_row = at.exists();
                if (has_row) kept = T::row(task.weight(at.weight), at.row);
            }
            if (!has_row) return;
#pragma unroll
            for (int u = 0; u < kUnroll; u++) {
                if (chunk + u * lanes < end) to[u] = T::load(kept, chunk + u * lanes);
            }
            return;
        }
        if (unit >= units) return;
        WeightRow at = task.row(unit, slot);
        if (!at.exists()) return;
        typename T::Row row = T::row(task.weight(at.weight), at.row);
#pragma unroll
        for (int u = 0; u < kUnroll; u++) {
            if (chunk + u * lanes < end) to[u] = T::load(row, chunk + u * lanes);
        }
    };
    load(now, first_unit, sub, true);
    const auto kind = kind_of<T>(task.weight(0));
    uint32_t n_rows = in.of_outputs ? step.counts->outputs : step.counts->rows;
    if constexpr (M == 1) {
        if (n_rows > 0) prefetch_norm<T::kBlockQuads>(in);
    }
    let_next_kernel_start();
    wait_for_previous_kernel();

    const uint8_t* acts = shared_memory() + LINEAR_HEADER_BYTES;
    for (uint32_t first = 0; first < n_rows;) {
        uint32_t n = n_rows - first < M ? n_rows - first : M;
        constexpr uint32_t kQuads = M == 1 ? T::kBlockQuads : kRowsQuads<T>;
        load_rows<T, M, kQuads>(step, in, begin, end, part_chunks, first, n);
        // Hides the value, so that the comparison is repeated and its result not kept in a register.
        first_unit = recomputed(first_unit);
        if (first + begin > 0) load(now, first_unit, begin + sub, true);
        for (uint32_t unit = first_unit; unit < units; unit += stride) {
            typename T::Acc sums[M] = {};
            WeightRow at = task.row(unit, slot);
            float scale = row_scale<T>(task, at);
            for (uint32_t base = begin; base < end; base += kUnroll * lanes) {
                bool last = base + kUnroll * lanes >= end;
                uint32_t chunk = last ? begin + sub : base + kUnroll * lanes + sub;
                load(next, last ? unit + stride : unit, chunk, last);
#pragma unroll
                for (int u = 0; u < kUnroll; u++) {
                    uint32_t chunk = base + u * lanes + sub;
                    if (at.exists() && chunk < end)
                        multiply<T, M>(sums, now[u], acts, chunk, sub, part_chunks, kind);
                }
#pragma unroll
                for (int u = 0; u < kUnroll; u++) now[u] = next[u];
            }
            // The lanes of a slot take batch rows in order. Recomputed, so that these values are not in
            // registers during the products.
            uint32_t width = M == 1 ? lanes : recomputed(lanes), member = M == 1 ? sub : recomputed(sub);
            typename T::Acc sum = reduce_each<Sum>(sums, static_cast<int>(width));
            if constexpr (kParts) {
                if (part_chunks < chunks) {
                    uint32_t act_bytes = LINEAR_HEADER_BYTES + M * act_row_bytes<T>(part_chunks);
                    float* kept = reinterpret_cast<float*>(shared_memory() + act_bytes);
                    kept += unit / stride * blockDim.x + threadIdx.x;
                    if (begin > 0) sum += *kept;
                    *kept = sum;
                    if (end < chunks) continue;
                }
            }
            uint32_t m = M == 1 ? 0 : member * M >> in.lanes_log2;
            float y = finished<T>(task, at, sum, row_quants()[m], scale);
            float other = __shfl_xor_sync(kWarp, y, kWarpSize / 2);
            if ((member & (width / M - 1)) != 0 || first + m >= n_rows || !at.exists()) continue;
            task.finish(unit, slot, first + m, y, other,
                task.late(unit, slot, first + m, step.rows[first + m]));
        }
        __syncthreads();
        if (kParts && end < chunks) {
            // Chunks keep their numbers.
            acts -= part_chunks * 16;
            begin = end;
            end = chunks - end < part_chunks ? chunks : end + part_chunks;
            continue;
        }
        first += M;
        if (M == 1 && first < n_rows) prefetch_norm<T::kBlockQuads>(in);
        if (kParts && begin > 0) {
            acts += begin * 16;
            begin = 0;
            end = part_chunks;
        }
    }
    // Kernels for several rows do more work per byte and have no spare registers, so they do not prefetch.
    if constexpr (M == 1) prefetch_next(step);
}
