// A draw from the largest logits of a row: what program/sampling.rs defines, for one block.
#pragma once

#include "../params.h"
#include "../simt.h"

// A logit and its id as one number: larger for larger logits, and for lower ids among equals. NaN is below
// all others.
using Candidate = unsigned long long;

constexpr Candidate kAboveAll = ~0ull;

// Candidates that a draw has room for, a power of two.
constexpr uint32_t kDrawRoom = 2048;

// Shared memory of a block that draws.
struct Draw {
    // The first of them sorted, once there are all.
    Candidate kept[kDrawRoom];
    Candidate scratch[kWarpSize];
    float weights[SAMPLE_MOST];
    // Candidates that want a place in `kept`.
    uint32_t n;
    uint32_t token;
};
static_assert(sizeof(Draw) <= SAMPLE_SHARED_BYTES, "the host asks for less");

DEVICE Candidate candidate(float logit, uint32_t id) {
    // Both zeros are one value.
    uint32_t bits = __float_as_uint(logit + 0.0f);
    uint32_t key = logit != logit ? 0 : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<Candidate>(key) << 32 | static_cast<uint32_t>(~id);
}

DEVICE uint32_t id_of(Candidate c) { return ~static_cast<uint32_t>(c); }

DEVICE float logit_of(Candidate c) {
    uint32_t key = static_cast<uint32_t>(c >> 32);
    if (key == 0) return -INFINITY;
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Sorts `n` candidates, a power of two, the largest first (Batcher's bitonic network). All threads call it;
// what they wrote before is seen, and all see the order afterwards.
DEVICE void sort_descending(Candidate* c, uint32_t n) {
    __syncthreads();
    for (uint32_t run = 2; run <= n; run *= 2) {
        for (uint32_t apart = run / 2; apart > 0; apart /= 2) {
            for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
                uint32_t other = i ^ apart;
                if (other < i) continue;
                Candidate a = c[i], b = c[other];
                bool falls = (i & run) == 0;
                if (falls == (a < b)) {
                    c[i] = b;
                    c[other] = a;
                }
            }
            __syncthreads();
        }
    }
}

// The `counter`-th number of a seeded generator, in [0, 1): two rounds of the finaliser of splitmix64.
DEVICE unsigned long long mix(unsigned long long z) {
    z += 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

DEVICE double uniform(unsigned long long seed, unsigned long long counter) {
    return static_cast<double>(mix(mix(seed) ^ counter) >> 11) * 0x1p-53;
}

// weights[i] = exp((logit i - the largest) / temperature) of the first n.
DEVICE void weigh(Draw& draw, uint32_t n, float temperature) {
    __syncthreads();
    float largest = logit_of(draw.kept[0]);
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        draw.weights[i] = expf((logit_of(draw.kept[i]) - largest) / temperature);
    }
    __syncthreads();
}

DEVICE double total(const Draw& draw, uint32_t n) {
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) sum += draw.weights[i];
    return sum;
}

// Picks one of the first `top_k` candidates: top-p, min-p, temperature, draw. Sums are the host's: the first
// thread makes them in order, in double.
DEVICE uint32_t pick(Draw& draw, const StepSampling& how) {
    uint32_t n = how.top_k;
    float largest = logit_of(draw.kept[0]);
    // No distribution to draw from.
    if (isinf(largest)) return id_of(draw.kept[0]);
    if (how.top_p < 1.0f) {
        weigh(draw, n, 1.0f);
        if (threadIdx.x == 0) {
            double all = total(draw, n), sum = 0.0;
            uint32_t reached = 0;
            while (reached < n && sum < how.top_p) sum += static_cast<float>(draw.weights[reached++] / all);
            draw.n = reached > 0 ? reached : 1;
        }
        __syncthreads();
        n = draw.n;
    }
    weigh(draw, n, how.temperature);
    if (threadIdx.x == 0) {
        if (how.min_p > 0.0f) {
            float least = largest + logf(fminf(how.min_p, 1.0f));
            while (n > 1 && logit_of(draw.kept[n - 1]) < least) n--;
        }
        double left = uniform(how.seed, how.counter) * total(draw, n);
        uint32_t at = 0;
        for (; at < n; at++) {
            left -= draw.weights[at];
            if (left < 0.0) break;
        }
        // Rounding can leave a little of the mass; it belongs to the last candidate that has any.
        if (at == n) {
            do at--; while (at > 0 && draw.weights[at] <= 0.0f);
        }
        draw.token = id_of(draw.kept[at]);
    }
    __syncthreads();
    return draw.token;
}
