// Route: selects the experts of each row, a warp per row, and sorts the rows of a large batch by expert: it
// counts the rows of each; the last block to arrive gives each expert as many consecutive places as it has
// rows, and splits them into tiles. Rows of a small batch are not sorted (`tiles` is null); they come here
// only for a routing that the kernels of experts do not repeat themselves (lib/routes.cuh):
//
//   p = softmax(z) or 1 / (1 + exp(-z)), score = p + bias, weight = scale p / sum of the chosen p
//
// Grid: x = eight rows. Reads the router's logits. The order of rows within an expert depends on timing, but
// no result does. Requires `counts` and `arrived` = 0.
#include "../lib/last_block.cuh"
#include "../lib/routes.cuh"
#include "../lib/step.cuh"

// The choice by a router's function, bias and groups.
struct RoutedByScore {
    const RouteParams& p;
    const float* z;
    // Largest logit, and the sum of exponentials, of a softmax over all experts.
    float largest, total;

    DEVICE RoutedByScore(const RouteParams& p, const float* z) : p(p), z(z), largest(0.0f), total(1.0f) {
        if (p.routing.gating != ROUTING_SOFTMAX) return;
        uint32_t n = p.routes.n_experts, lane = threadIdx.x % kWarpSize;
        uint32_t most = 0;
        for (uint32_t expert = lane; expert < n; expert += kWarpSize) {
            uint32_t rank = rank_of(z[expert]);
            most = rank > most ? rank : most;
        }
        largest = ranked(reduce_warp<Max>(most));
        float sum = 0.0f;
        for (uint32_t expert = lane; expert < n; expert += kWarpSize) sum += expf(z[expert] - largest);
        total = reduce_lanes<Sum>(sum, kWarpSize);
    }

    DEVICE float probability(uint32_t expert) const {
        if (p.routing.gating == ROUTING_SIGMOID) return 1.0f / (1.0f + expf(-z[expert]));
        return expf(z[expert] - largest) / total;
    }

    // Excludes the experts outside the best groups: lane g has the score of group g, the sum of its two
    // largest scores.
    DEVICE void keep_best_groups(RouterScores& scores) const {
        uint32_t lane = threadIdx.x % kWarpSize, size = p.routing.group_size, own = 0;
        for (uint32_t group = 0; group < p.routing.n_groups; group++) {
            uint32_t first = 0, second = 0;
#pragma unroll
            for (uint32_t i = 0; i < RouterScores::kOwn; i++) {
                uint32_t rank = (lane + i * kWarpSize) / size == group ? scores.ranks[i] : 0;
                second = rank > first ? first : rank > second ? rank : second;
                first = rank > first ? rank : first;
            }
            for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
                uint32_t other = shuffle_xor(first, mask), next = shuffle_xor(second, mask);
                uint32_t less = other < first ? other : first;
                first = other > first ? other : first;
                second = next > second ? next : second;
                second = less > second ? less : second;
            }
            if (lane == group) own = rank_of(ranked(first) + ranked(second));
        }
        uint32_t kept = 0;
        for (uint32_t j = 0; j < p.routing.n_groups_used; j++) {
            uint32_t best = reduce_warp<Max>(own);
            uint32_t group = ~reduce_warp<Max>(own == best ? ~lane : 0u);
            kept |= 1u << group;
            if (lane == group) own = 0;
        }
#pragma unroll
        for (uint32_t i = 0; i < RouterScores::kOwn; i++) {
            uint32_t group = (lane + i * kWarpSize) / size;
            if (group >= p.routing.n_groups || !(kept >> group & 1)) scores.ranks[i] = 0;
        }
    }

    // As `choose` of lib/routes.cuh.
    DEVICE ExpertChoice choice(uint32_t first_slot) const {
        uint32_t n_used = p.routes.n_used, lane = threadIdx.x % kWarpSize;
        const float* bias = p.routing.bias;
        RouterScores scores(p.routes.n_experts, [&](uint32_t expert) {
            return probability(expert) + (bias ? bias[expert] : 0.0f);
        });
        if (p.routing.group_size) keep_best_groups(scores);
        ExpertChoice mine = {0, 0.0f, first_slot + lane, 0};
        for (uint32_t j = 0; j < n_used; j++) {
            uint32_t rank, expert = scores.take(rank);
            if (lane == j) mine.expert = expert;
        }
        float weight = lane < n_used ? probability(mine.expert) : 0.0f;
        float sum = reduce_lanes<Sum>(weight, kWarpSize);
        if (p.routing.normalise) weight /= fmaxf(sum, 1e-20f);
        mine.weight = weight * p.routing.scale;
        return mine;
    }
};

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
        const float* z = p.logits + uint64_t(r) * to.n_experts;
        uint32_t first_slot = r * to.n_used;
        ExpertChoice choice = p.routing.gating == ROUTING_CHOSEN
            ? choose(z, to.n_experts, to.n_used, first_slot)
            : RoutedByScore(p, z).choice(first_slot);
        if (lane < to.n_used) {
            if (to.tiles) choice.place = atomicAdd(to.counts + choice.expert, 1u);
            to.choices[first_slot + lane] = choice;
        }
    }
    if (!to.tiles) return;
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
