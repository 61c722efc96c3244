// Draws from the largest logits of a row, as program/sampling.rs defines, in one block.
#pragma once

#include "../params.h"
#include "../simt.h"
#include "reduce.cuh"

// A logit and its id as one sortable number: larger for larger logits, and for lower ids among equal logits.
// NaN sorts below everything.
using Candidate = unsigned long long;

constexpr Candidate kAboveAll = ~0ull;

// Candidates that a thread loads at a time.
constexpr uint32_t kDrawBatch = 8;

// Shared memory of the block.
struct Draw {
    // Candidates that may be among the largest.
    Candidate kept[SAMPLE_STRETCH];
    // The largest of each thread; later the largest of all, in order.
    Candidate largest[SAMPLE_THREADS];
    Candidate scratch[kWarpSize];
    // Number of candidates for `kept`.
    uint32_t n;
    // True if this is the last block of the row.
    uint32_t last;
};
static_assert(sizeof(Draw) <= SAMPLE_SHARED_BYTES, "the host asks for less");
static_assert(SAMPLE_MAX <= SAMPLE_THREADS, "a thread writes one of the largest");

DEVICE Candidate candidate(float logit, uint32_t id) {
    // -0 and +0 are equal.
    uint32_t bits = __float_as_uint(logit + 0.0f);
    uint32_t flipped = static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u;
    uint32_t key = logit != logit ? 0 : bits ^ flipped;
    return static_cast<Candidate>(key) << 32 | static_cast<uint32_t>(~id);
}

DEVICE uint32_t id_of(Candidate c) { return ~static_cast<uint32_t>(c); }

DEVICE float logit_of(Candidate c) {
    uint32_t key = static_cast<uint32_t>(c >> 32);
    if (key == 0) return -INFINITY;
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Number of the n candidates that are larger than c; `all` is padded with zeros to whole batches.
DEVICE uint32_t larger(const Candidate* all, uint32_t n, Candidate c) {
    uint32_t count = 0;
    for (uint32_t first = 0; first < n; first += kDrawBatch) {
        Candidate batch[kDrawBatch];
#pragma unroll
        for (uint32_t i = 0; i < kDrawBatch; i++) batch[i] = all[first + i];
#pragma unroll
        for (uint32_t i = 0; i < kDrawBatch; i++) count += batch[i] > c;
    }
    return count;
}

// Writes the k largest candidates to draw.largest, in order, padded with 0 (no candidate). `each(visit)`
// visits this thread's candidates. All threads call it, and all see the result; with k == 1 only thread 0
// does.
//
// A bound is found first: per warp, the (k / warps)-th largest of its lanes' largest candidates. So at least
// k candidates reach the smallest of these bounds, and only those that do are collected: few more than k,
// unless the largest belong to few threads. If they do not fit, the largest are found one by one.
template <class Each>
DEVICE void find_largest(Draw& draw, uint32_t k, Each each) {
    Candidate own = 0;
    each([&](Candidate c) { own = Max::of(own, c); });
    if (k == 1) {
        own = reduce_block<Max, SAMPLE_THREADS>(own, draw.scratch);
        if (threadIdx.x == 0) draw.largest[0] = own;
        return;
    }
    constexpr uint32_t kWarps = SAMPLE_THREADS / kWarpSize;
    uint32_t warp = threadIdx.x / kWarpSize;
    draw.largest[threadIdx.x] = own;
    if (threadIdx.x % kWarpSize == 0) draw.scratch[warp] = 0;
    if (threadIdx.x == 0) draw.n = 0;
    __syncwarp();
    uint32_t before = larger(draw.largest + warp * kWarpSize, kWarpSize, own);
    // Only zeros can be equal.
    if (own != 0 && before == (k + kWarps - 1) / kWarps - 1) draw.scratch[warp] = own;
    __syncthreads();
    Candidate least = draw.scratch[0];
#pragma unroll
    for (uint32_t i = 1; i < kWarps; i++) least = draw.scratch[i] < least ? draw.scratch[i] : least;
    // 0 is no candidate.
    least = least > 0 ? least : 1;
    each([&](Candidate c) {
        if (c < least) return;
        uint32_t at = atomicAdd(&draw.n, 1u);
        if (at < SAMPLE_STRETCH) draw.kept[at] = c;
    });
    draw.largest[threadIdx.x] = 0;
    __syncthreads();
    uint32_t n = draw.n;
    if (n <= SAMPLE_STRETCH) {
        if (threadIdx.x < kDrawBatch && n + threadIdx.x < SAMPLE_STRETCH) draw.kept[n + threadIdx.x] = 0;
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n; i += SAMPLE_THREADS) {
            uint32_t place = larger(draw.kept, n, draw.kept[i]);
            if (place < k) draw.largest[place] = draw.kept[i];
        }
    } else {
        Candidate bound = kAboveAll;
        for (uint32_t i = 0; i < k; i++) {
            Candidate next = 0;
            each([&](Candidate c) {
                if (c < bound) next = Max::of(next, c);
            });
            bound = reduce_block<Max, SAMPLE_THREADS>(next, draw.scratch);
            if (threadIdx.x == 0) draw.largest[i] = bound;
            __syncthreads();
        }
    }
    __syncthreads();
}

// Number `counter` of a seeded generator, in [0, 1): two rounds of the splitmix64 finaliser.
DEVICE unsigned long long mix(unsigned long long z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

// Weights of the first n candidates; a lane of the warp has kOwnWeights neighbouring ones:
//
//   w_i = exp((logit_i - largest) / temperature)
//
// Sums are integers in units of 2^-40, so they do not depend on the order.
constexpr uint32_t kOwnWeights = SAMPLE_MAX / kWarpSize;

struct Weights {
    // Sum of the weights up to and including candidate i of this lane; and the total.
    unsigned long long up_to[kOwnWeights], total;
    uint32_t n;

    DEVICE Weights(const float (&logits)[kOwnWeights], uint32_t n, float largest, float temperature) : n(n) {
        uint32_t lane = threadIdx.x % kWarpSize;
        unsigned long long sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < kOwnWeights; i++) {
            float weight = expf((logits[i] - largest) / temperature);
            // NaN has no weight.
            if (has(i) && weight > 0.0f) sum += static_cast<unsigned long long>(weight * 0x1p40f);
            up_to[i] = sum;
        }
        unsigned long long own = sum;
#pragma unroll
        for (uint32_t far = 1; far < kWarpSize; far *= 2) {
            unsigned long long before = __shfl_sync(kWarp, sum, (lane - far) % kWarpSize);
            if (lane >= far) sum += before;
        }
#pragma unroll
        for (uint32_t i = 0; i < kOwnWeights; i++) up_to[i] += sum - own;
        total = __shfl_sync(kWarp, sum, kWarpSize - 1);
    }

    // True if candidate i of this lane is one of the n.
    DEVICE bool has(uint32_t i) const { return threadIdx.x % kWarpSize * kOwnWeights + i < n; }

    // Number of candidates whose cumulative weight is below `bound`.
    DEVICE uint32_t before(unsigned long long bound) const {
        int32_t count = 0;
#pragma unroll
        for (uint32_t i = 0; i < kOwnWeights; i++) count += has(i) && up_to[i] < bound;
        return reduce_warp<Sum>(count);
    }
};

// Samples one of the `top_k` candidates in draw.largest: top-p, min-p, temperature, draw. Called by one warp.
DEVICE uint32_t pick(const Draw& draw, const StepSampling& how) {
    float largest = logit_of(draw.largest[0]);
    // There is no distribution to draw from.
    if (isinf(largest)) return id_of(draw.largest[0]);
    uint32_t n = how.top_k, first = threadIdx.x % kWarpSize * kOwnWeights;
    float logits[kOwnWeights];
#pragma unroll
    for (uint32_t i = 0; i < kOwnWeights; i++) logits[i] = logit_of(draw.largest[first + i]);
    if (how.top_p < 1.0f) {
        Weights weights(logits, n, largest, 1.0f);
        double mass = static_cast<double>(how.top_p) * static_cast<double>(weights.total);
        n = weights.before(static_cast<unsigned long long>(mass)) + 1;
    }
    if (how.min_p > 0.0f) {
        float least = largest + logf(fminf(how.min_p, 1.0f));
        int32_t count = 0;
#pragma unroll
        for (uint32_t i = 0; i < kOwnWeights; i++) count += first + i < n && logits[i] >= least;
        n = reduce_warp<Sum>(count);
    }
    Weights weights(logits, n, largest, how.temperature);
    // Samples the candidate at which the cumulative weight passes that share of the total: 53 bits of a
    // number in [0, 1).
    unsigned long long share = mix(mix(how.seed) ^ how.counter) >> 11 << 11;
    return id_of(draw.largest[weights.before(__umul64hi(share, weights.total) + 1)]);
}
