// Attention in parts: groups of lanes and whole blocks see some positions each, and what they found is
// merged.
#pragma once

#include "../params.h"
#include "../simt.h"

// A softmax under way: the largest score in units of log2, and the sum of weights relative to it.
struct Softmax {
    float largest, sum;
};

// What weights relative to `from` are multiplied with to be relative to `to`, which is at least as large.
DEVICE float rescale(float from, float to) {
    return from == to ? 1.0f : exp2_fast(from - to);
}

// The parts of the blocks that share one row and up to kHeads query heads. A part of a head is `len` floats:
// largest score, sum of weights, and values weighted so; the first may be any number that both others are
// relative to.
template <uint32_t kHeads>
struct Parts {
    // [.., max_splits, kHeads, len]
    float* partial;
    // Blocks that have come; 0 between two launches.
    uint32_t* arrived;
    // Which blocks these are.
    uint64_t at;
    // How many they are, and how many there is room for.
    uint32_t splits, max_splits;
    uint32_t len;
};

// Merges the parts of a block's groups, which lie in shared memory as [groups, kHeads, len]. One split is the
// result; of more, each block leaves its own, and the last to come merges these. Calls write(head, element,
// value) for the result, and says whether this block had it.
template <uint32_t kHeads, class Write>
DEVICE bool merge_parts(
    const Parts<kHeads>& p, uint32_t split, uint32_t groups, uint32_t heads, uint32_t head_dim, Write write
) {
    float* left = p.partial + (p.at * p.max_splits + split) * kHeads * p.len;
    uint32_t n = groups, from_stride = kHeads * p.len;
    const float* from = reinterpret_cast<const float*>(shared_memory());
    bool merged = false;
    __syncthreads();
    for (;;) {
        bool final = p.splits == 1 || merged;
        for (uint32_t at = threadIdx.x; at < heads * head_dim; at += blockDim.x) {
            uint32_t h = at / head_dim, e = at % head_dim;
            const float* part = from + h * p.len;
            float largest = -INFINITY, sum = 0.0f, value = 0.0f;
            for (uint32_t g = 0; g < n; g++) largest = fmaxf(largest, part[g * from_stride]);
            for (uint32_t g = 0; g < n; g++) {
                // A group that saw no position has no weight, and whatever else it has is no number.
                if (part[g * from_stride + 1] == 0.0f) continue;
                float by = rescale(part[g * from_stride], largest);
                sum = fmaf(part[g * from_stride + 1], by, sum);
                value = fmaf(part[g * from_stride + 2 + e], by, value);
            }
            if (final) {
                write(h, e, value / sum);
            } else {
                float* to = left + h * p.len;
                if (e == 0) {
                    to[0] = largest;
                    to[1] = sum;
                }
                to[2 + e] = value;
            }
        }
        if (final) return true;

        // The block that comes last sees what all others have left.
        __threadfence();
        __syncthreads();
        uint32_t* last = reinterpret_cast<uint32_t*>(shared_memory());
        if (threadIdx.x == 0) {
            *last = atomicAdd(p.arrived + p.at, 1u) == p.splits - 1;
            if (*last) p.arrived[p.at] = 0;
        }
        __syncthreads();
        if (!*last) return false;
        __threadfence();
        from = p.partial + p.at * p.max_splits * kHeads * p.len;
        n = p.splits;
        merged = true;
    }
}
