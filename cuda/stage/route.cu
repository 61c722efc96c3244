// Route: sorts the rows of a large batch by expert. A warp selects the experts of a row (lib/routes.cuh) and
// counts the row for each of them; the last block to arrive gives each expert as many consecutive places as
// it has rows, and splits them into tiles.
//
// Grid: x = eight rows. Reads the router's logits. The order of rows within an expert depends on timing, but
// no result does. Requires `counts` and `arrived` = 0.
#include "../lib/last_block.cuh"
#include "../lib/routes.cuh"
#include "../lib/step.cuh"

KERNEL(route, RouteParams, ROUTE_THREADS) {
    SHARED(uint32_t, word, 1);
    // Inclusive prefix sums over experts: rows, and tiles.
    SHARED(uint32_t, rows_before, EXPERTS_MAX);
    SHARED(uint32_t, tiles_before, EXPERTS_MAX);
    let_next_kernel_start();
    wait_for_previous_kernel();
    const RoutesParams& to = p.routes;
    uint32_t n_rows = p.step.counts->rows, lane = threadIdx.x % kWarpSize;
    uint32_t r = blockIdx.x * (ROUTE_THREADS / kWarpSize) + threadIdx.x / kWarpSize;
    if (r < n_rows) {
        ExpertChoice choice = choose(p.logits + uint64_t(r) * to.n_experts, to.n_experts, to.n_used, 0);
        if (lane < to.n_used) {
            choice.place = atomicAdd(to.counts + choice.expert, 1u);
            to.choices[r * to.n_used + lane] = choice;
        }
    }
    if (!comes_last(to.arrived, gridDim.x, word)) return;

    constexpr uint32_t kOwn = EXPERTS_MAX / ROUTE_THREADS;
    uint32_t rows[kOwn], tiles[kOwn];
#pragma unroll
    for (uint32_t i = 0; i < kOwn; i++) {
        uint32_t expert = threadIdx.x + i * ROUTE_THREADS;
        rows[i] = expert < to.n_experts ? to.counts[expert] : 0;
        tiles[i] = (rows[i] + MMA_ROWS - 1) / MMA_ROWS;
        rows_before[expert] = rows[i];
        tiles_before[expert] = tiles[i];
    }
    __syncthreads();
    for (uint32_t far = 1; far < EXPERTS_MAX; far *= 2) {
        uint32_t more_rows[kOwn], more_tiles[kOwn];
#pragma unroll
        for (uint32_t i = 0; i < kOwn; i++) {
            uint32_t expert = threadIdx.x + i * ROUTE_THREADS;
            more_rows[i] = expert < far ? 0 : rows_before[expert - far];
            more_tiles[i] = expert < far ? 0 : tiles_before[expert - far];
        }
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < kOwn; i++) {
            rows_before[threadIdx.x + i * ROUTE_THREADS] += more_rows[i];
            tiles_before[threadIdx.x + i * ROUTE_THREADS] += more_tiles[i];
        }
        __syncthreads();
    }
#pragma unroll
    for (uint32_t i = 0; i < kOwn; i++) {
        uint32_t expert = threadIdx.x + i * ROUTE_THREADS;
        if (expert >= to.n_experts) continue;
        uint32_t first = rows_before[expert] - rows[i], tile = tiles_before[expert] - tiles[i];
        for (uint32_t at = 0; at < rows[i]; at += MMA_ROWS) {
            uint32_t left = rows[i] - at;
            to.tiles[tile + at / MMA_ROWS] = {expert, first + at, left < MMA_ROWS ? left : MMA_ROWS, 0};
        }
        to.counts[expert] = 0;
    }
    if (threadIdx.x == 0) *to.n_tiles = tiles_before[EXPERTS_MAX - 1];
    for (uint32_t slot = threadIdx.x; slot < n_rows * to.n_used; slot += ROUTE_THREADS) {
        ExpertChoice& choice = to.choices[slot];
        uint32_t expert = choice.expert, before = expert > 0 ? rows_before[expert - 1] : 0;
        uint32_t place = before + choice.place;
        choice.place = place;
        to.rows[place] = slot / to.n_used;
    }
}
