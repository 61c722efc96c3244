// Routing of a row to experts: the `n_used` with the largest scores (lower indices win ties). A warp routes
// one row in registers: lane l has the scores of experts l, l + 32, ... In `choose` scores are the logits,
// and weights are their softmax over the chosen experts, z_0 being the largest logit:
//
//   p_j = exp(z_j - z_0) / sum of exp(z_i - z_0)
#pragma once

#include "../params.h"
#include "../simt.h"
#include "reduce.cuh"

// Maps floats to integers > 0 of the same order. NaN is the largest, so that it shows in the weights.
DEVICE uint32_t rank_of(float z) {
    uint32_t bits = __float_as_uint(z);
    if (z != z) return 0xffffffffu;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The float of a rank above 0.
DEVICE float ranked(uint32_t rank) {
    return __uint_as_float(rank == 0xffffffffu ? rank : rank >> 31 ? rank & 0x7fffffffu : ~rank);
}

// A row's scores, distributed over the lanes.
struct RouterScores {
    static constexpr uint32_t kOwn = EXPERTS_MAX / kWarpSize;
    // 0 for experts that do not exist or may not be chosen any more.
    uint32_t ranks[kOwn];

    // `score(expert)` returns the score of an expert.
    template <class Score>
    DEVICE RouterScores(uint32_t n, const Score& score) {
#pragma unroll
        for (uint32_t i = 0; i < kOwn; i++) {
            uint32_t expert = threadIdx.x % kWarpSize + i * kWarpSize;
            ranks[i] = 0;
            // Uniform across lanes.
            if (i * kWarpSize < n && expert < n) ranks[i] = rank_of(score(expert));
        }
    }

    // Returns the best remaining expert and its rank, and removes it. All lanes get the result.
    DEVICE uint32_t take(uint32_t& rank) {
        uint32_t mine = 0, at = 0;
#pragma unroll
        for (uint32_t i = 0; i < kOwn; i++) {
            if (ranks[i] > mine) {
                mine = ranks[i];
                at = i;
            }
        }
        rank = reduce_warp<Max>(mine);
        uint32_t expert = threadIdx.x % kWarpSize + at * kWarpSize;
        // The lowest index of equal ones.
        expert = ~reduce_warp<Max>(mine == rank ? ~expert : 0u);
#pragma unroll
        for (uint32_t i = 0; i < kOwn; i++) {
            if (threadIdx.x % kWarpSize + i * kWarpSize == expert) ranks[i] = 0;
        }
        return expert;
    }
};

// Lane j returns the choice of slot j of a row, with the slot's number as its place. All lanes of a warp call
// it.
DEVICE ExpertChoice choose(const float* z, uint32_t n_experts, uint32_t n_used, uint32_t first_slot) {
    RouterScores logits(n_experts, [&](uint32_t expert) { return z[expert]; });
    uint32_t lane = threadIdx.x % kWarpSize;
    ExpertChoice mine = {0, 0.0f, first_slot + lane, 0};
    float largest = 0.0f, own = 0.0f;
    for (uint32_t j = 0; j < n_used; j++) {
        uint32_t rank, expert = logits.take(rank);
        float value = ranked(rank);
        if (j == 0) largest = value;
        if (lane == j) {
            mine.expert = expert;
            own = value;
        }
    }
    float weight = lane < n_used ? expf(own - largest) : 0.0f;
    mine.weight = weight / reduce_lanes<Sum>(weight, kWarpSize);
    return mine;
}

// Sum over the slots of row r of their contribution to column `col`, of `cols`.
DEVICE float mixed(
    const RoutesParams& routes, uint32_t r, const float* products, uint32_t cols, uint32_t col
) {
    float sum = 0.0f;
    for (uint32_t j = 0; j < routes.n_used; j++) {
        ExpertChoice choice = routes.choices[r * routes.n_used + j];
        sum = fmaf(choice.weight, products[uint64_t(choice.place) * cols + col], sum);
    }
    return sum;
}
