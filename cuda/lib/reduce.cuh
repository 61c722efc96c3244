// Reductions over a warp or a whole block.
//
// A block's reduction passes through `scratch`, 32 values of shared memory that no other reduction may use
// before the next __syncthreads().
#pragma once

#include "wide.cuh"

DEVICE Wide shuffle_xor(Wide x, int mask) {
    return {__shfl_xor_sync(kWarp, x.hi, mask), __shfl_xor_sync(kWarp, x.lo, mask)};
}

template <class V>
DEVICE V shuffle_xor(V x, int mask) {
    return __shfl_xor_sync(kWarp, x, mask);
}

struct Sum {
    DEVICE static Wide of(Wide a, Wide b) { return add(a, b); }
    template <class V>
    DEVICE static V of(V a, V b) {
        return a + b;
    }
};

struct Max {
    template <class V>
    DEVICE static V of(V a, V b) {
        return a > b ? a : b;
    }
};

// Over neighbouring `lanes` lanes, a power of two: each of them has the result.
template <class Op, class V>
DEVICE V reduce_lanes(V x, int lanes) {
    for (int mask = lanes / 2; mask > 0; mask /= 2) x = Op::of(x, shuffle_xor(x, mask));
    return x;
}

// Over the block: every thread has the result.
template <class Op, class V>
DEVICE V reduce_block(V x, V* scratch) {
    x = reduce_lanes<Op>(x, kWarpSize);
    if (threadIdx.x % kWarpSize == 0) scratch[threadIdx.x / kWarpSize] = x;
    __syncthreads();
    V all = scratch[0];
    for (uint32_t warp = 1; warp < blockDim.x / kWarpSize; warp++) all = Op::of(all, scratch[warp]);
    return all;
}

// Over the block, or over the warp alone.
template <bool Block, class Op, class V>
DEVICE V reduce(V x, V* scratch) {
    if constexpr (Block) {
        return reduce_block<Op>(x, scratch);
    } else {
        return reduce_lanes<Op>(x, kWarpSize);
    }
}
