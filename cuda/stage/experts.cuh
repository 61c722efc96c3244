// Experts: a layer of the experts that rows are routed to: y = W_e n, or h = act(Gate_e n) * (Up_e n).
//
// There are two kernels, built on lib/linear.cuh. `experts` processes slots (row, expert) one by one, for
// batches so small that rows rarely share an expert: z = slot, x = share of the outputs. The router's logits
// come from the previous launch, and every warp selects the row's experts again: that is cheaper than another
// launch, although its weight loads start one memory round trip later than those of other stages. For the
// last layer, the last block of a row to arrive adds up the row's products for its share of the outputs, in
// slot order. `experts__tiles` processes tiles of rows that share an expert, made by `route`: z = tile, x =
// share of the outputs; types with f16 kernels use tensor cores.
//
// Only the device knows which expert it is: its LinearParams come from a table. A slot of a warp owns an
// output; gate and up projections meet in a warp as in ffn_in.cuh. Reads W_e once per slot or tile. Requires
// `arrived` = 0. The router itself is one more expert, applied to tiles of neighbouring batch rows before
// `route` has made any tiles.
#pragma once

#include "../lib/parts.cuh"
#include "../lib/routes.cuh"
#include "ffn_in.cuh"

// Layers of one expert, for a slot or a tile of rows.
template <class Weights>
struct ExpertsTask {
    const ExpertsParams& p;
    const Weights& weights;
    // First row of products.
    float* out;

    DEVICE ExpertsTask(const ExpertsParams& p, const Weights& weights, uint32_t place)
        : p(p), weights(weights), out(p.out + uint64_t(place) * p.outputs) {}

    DEVICE bool paired() const { return p.act != ACT_NONE; }
    DEVICE uint32_t slots() const { return kWarpSize >> p.in.lanes_log2; }
    // Outputs per unit.
    DEVICE uint32_t width() const { return paired() ? slots() / 2 : slots(); }
    DEVICE uint32_t units() const { return (p.outputs + width() - 1) / width(); }

    DEVICE WeightRow row(uint32_t unit, uint32_t slot) const {
        bool of_gate = paired() && slot < width();
        uint32_t row = unit * width() + slot % width();
        return {of_gate, row < p.outputs ? row : WeightRow::kNone};
    }
    DEVICE LinearParams weight(uint32_t of_gate) const {
        LinearParams w = weights.of(of_gate);
        w.rows = p.outputs;
        w.chunks = p.chunks;
        return w;
    }

    struct Around {};
    DEVICE Around around(uint32_t, uint32_t, uint32_t, const StepRow&) const { return {}; }
    DEVICE Around late(uint32_t, uint32_t, uint32_t, const StepRow&) const { return {}; }
    DEVICE void finish(uint32_t unit, uint32_t slot, uint32_t m, float y, float other, const Around&) const {
        if (slot >= width()) return;
        float value = paired() ? gated(p.act, y, other) : y;
        out[uint64_t(m) * p.outputs + unit * width() + slot] = value;
    }
};

// A layer, and its gate if it has one, in registers.
struct InRegisters {
    LinearParams gate, w;
    DEVICE LinearParams of(uint32_t of_gate) const { return select(of_gate, gate, w); }
};

// In shared memory, the layer first, for kernels without spare registers: reloaded at each use.
struct InShared {
    const LinearParams* weights;
    DEVICE LinearParams of(uint32_t of_gate) const { return weights[recomputed(of_gate)]; }
};

template <class T>
DEVICE void experts(const ExpertsParams& p) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    const RoutesParams& routes = p.routes;
    uint32_t slot = blockIdx.z, r = slot / routes.n_used;
    if (r >= p.step.counts->rows) return;
    uint32_t expert;
    if (p.logits) {
        const float* z = p.logits + uint64_t(r) * routes.n_experts;
        uint32_t j = slot % routes.n_used, first = slot - j;
        ExpertChoice choice = choose(z, routes.n_experts, routes.n_used, first);
        // For later launches.
        if (blockIdx.x == 0 && threadIdx.x == j) routes.choices[slot] = choice;
        expert = __shfl_sync(kWarp, choice.expert, static_cast<int>(j));
    } else {
        expert = routes.choices[slot].expert;
    }
    const LinearParams* table = p.table + expert * 3 + p.layer;
    InRegisters weights = {table[0], table[p.act != ACT_NONE]};
    ExpertsTask<InRegisters> task(p, weights, slot);
    // A step of one row.
    StepCounts counts = {1, 1, 0, 0};
    uint32_t from = p.of_step ? r : slot;
    StepTables step = p.step;
    step.counts = &counts;
    step.outputs = &from;
    InputParams in = p.in;
    in.of_outputs = 1;
    run_linear<T, 1, false>(step, in, p.chunks, task);
    if (!p.x) return;
    uint32_t* word = reinterpret_cast<uint32_t*>(shared_memory());
    if (!comes_last(routes.arrived + 1 + r * gridDim.x + blockIdx.x, routes.n_used, word)) return;
    // Outputs of the block's units.
    uint32_t width = task.width(), units = (task.units() - blockIdx.x + gridDim.x - 1) / gridDim.x;
    for (uint32_t at = threadIdx.x; at < units * width; at += blockDim.x) {
        uint32_t col = (at / width * gridDim.x + blockIdx.x) * width + at % width;
        if (col >= p.outputs) continue;
        float* x = p.x + uint64_t(r) * p.outputs + col;
        float sum = mixed(routes, r, p.out, p.outputs, col);
        *x = p.adds ? *x + sum : sum;
    }
}

// True if a type has f16 products: from its codes, or from T::Halves.
template <class T, class = void>
constexpr bool kOnHalves = kCodes<T>;
template <class T>
constexpr bool kOnHalves<T, typename Exists<typename T::Halves>::Type> = true;

template <class T>
DEVICE void experts_tiles(const ExpertsParams& p) {
    SHARED(LinearParams, layers, 2);
    let_next_kernel_start();
    wait_for_previous_kernel();
    const RoutesParams& routes = p.routes;
    uint32_t n_rows = p.step.counts->rows, first = blockIdx.z * MMA_ROWS;
    ExpertTile tile = {0, first, n_rows - first < MMA_ROWS ? n_rows - first : MMA_ROWS, 0};
    if (routes.n_tiles) {
        if (blockIdx.z >= *routes.n_tiles) return;
        tile = routes.tiles[blockIdx.z];
    } else if (first >= n_rows) {
        return;
    }
    if (threadIdx.x < 2) {
        bool paired = p.act != ACT_NONE, of_gate = threadIdx.x == 1;
        layers[threadIdx.x] = p.table[tile.expert * 3 + p.layer + (paired && !of_gate)];
    }
    __syncthreads();
    InShared weights = {layers};
    ExpertsTask<InShared> task(p, weights, tile.first);
    // A step of the tile's rows.
    StepCounts counts = {tile.rows, tile.rows, 0, 0};
    StepTables step = p.step;
    step.counts = &counts;
    step.outputs = routes.rows + tile.first;
    InputParams in = p.in;
    // Neighbouring rows are read in place.
    in.of_outputs = p.of_step && routes.n_tiles;
    if (!in.of_outputs) in.x += uint64_t(tile.first) * in.cols;
    if constexpr (kOnHalves<T>) {
        run_linear_halves<T>(step, in, p.chunks, task);
    } else {
        run_linear<T, LINEAR_ROWS>(step, in, p.chunks, task);
    }
}
