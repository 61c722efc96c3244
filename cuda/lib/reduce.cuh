// Reductions over a warp or a whole block.
//
// A block reduction uses `scratch`, 32 values of shared memory that no other reduction may use before the
// next __syncthreads().
#pragma once

#include "../params.h"
#include "wide.cuh"

DEVICE Wide shuffle_xor(Wide x, int mask) {
    return {__shfl_xor_sync(kWarp, x.hi, mask), __shfl_xor_sync(kWarp, x.lo, mask)};
}

template <class V>
DEVICE V shuffle_xor(V x, int mask) {
    return __shfl_xor_sync(kWarp, x, mask);
}

struct Sum {
    static constexpr bool kIdempotent = false;
    DEVICE static Wide of(Wide a, Wide b) { return add(a, b); }
    template <class V>
    DEVICE static V of(V a, V b) {
        return a + b;
    }
};

// For numbers of the same sign.
struct SumAlike {
    static constexpr bool kIdempotent = false;
    DEVICE static Wide of(Wide a, Wide b) { return add_alike(a, b); }
};

struct Max {
    // True if a value may be counted more than once.
    static constexpr bool kIdempotent = true;
    template <class V>
    DEVICE static V of(V a, V b) {
        return a > b ? a : b;
    }
};

// For floats, ignoring NaN.
struct Largest {
    DEVICE static float of(float a, float b) { return fmaxf(a, b); }
};

// Over `lanes` neighbouring lanes, a power of two: all of them get the result.
template <class Op, class V>
DEVICE V reduce_lanes(V x, int lanes) {
    for (int mask = lanes / 2; mask > 0; mask /= 2) x = Op::of(x, shuffle_xor(x, mask));
    return x;
}

// Reduces M values over `lanes` neighbouring lanes (both powers of two, lanes >= M), each in the order of
// reduce_lanes. Each lanes / M neighbouring lanes get one result, the m-th group that of x[m].
template <class Op, int M, class V>
DEVICE V reduce_each(V (&x)[M], int lanes) {
    int mask = lanes / 2;
#pragma unroll
    for (int n = M / 2; n > 0; n /= 2) {
        bool upper = (threadIdx.x & mask) != 0;
#pragma unroll
        for (int i = 0; i < n; i++) {
            V kept = upper ? x[i + n] : x[i], given = upper ? x[i] : x[i + n];
            x[i] = Op::of(kept, shuffle_xor(given, mask));
        }
        mask /= 2;
    }
    for (; mask > 0; mask /= 2) x[0] = Op::of(x[0], shuffle_xor(x[0], mask));
    return x[0];
}

// Over a warp, with the hardware's integer reductions where it has them.
template <class Op, class V>
DEVICE V reduce_warp(V x) {
    return reduce_lanes<Op>(x, kWarpSize);
}
template <>
DEVICE uint32_t reduce_warp<Max>(uint32_t x) {
    return __reduce_max_sync(kWarp, x);
}
template <>
DEVICE int32_t reduce_warp<Sum>(int32_t x) {
    return __reduce_add_sync(kWarp, x);
}

// Over the results of a block's warps, where lane i holds that of warp i % kWarps; all lanes get the result.
template <class Op, uint32_t kWarps, class V>
DEVICE V reduce_warps(V x) {
    if constexpr (Op::kIdempotent && sizeof(V) == 4) {
        // Some values are counted several times, in one instruction.
        return reduce_warp<Op>(x);
    } else {
        return reduce_lanes<Op>(x, static_cast<int>(kWarps));
    }
}

// Over a block of kThreads, with a power of two of warps: every thread gets the result. Every warp reduces
// the warps' results, which takes no longer than one warp doing it for all.
template <class Op, uint32_t kThreads, class V>
DEVICE V reduce_block(V x, V* scratch) {
    constexpr uint32_t kWarps = kThreads / kWarpSize;
    x = reduce_warp<Op>(x);
    if (threadIdx.x % kWarpSize == 0) scratch[threadIdx.x / kWarpSize] = x;
    __syncthreads();
    return reduce_warps<Op, kWarps>(scratch[threadIdx.x % kWarps]);
}

// Over a block of LINEAR_THREADS, or over one warp.
template <bool Block, class Op, class V>
DEVICE V reduce(V x, V* scratch) {
    if constexpr (Block) {
        return reduce_block<Op, LINEAR_THREADS>(x, scratch);
    } else {
        return reduce_warp<Op>(x);
    }
}
