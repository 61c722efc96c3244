// The rotation of TurboQuant: y = H D x / sqrt(n), sign flips and then a Hadamard matrix in natural order.
//
// A warp owns a vector of 32 to CODES_MAX_DIM elements, a power of two: a lane has the elements lane, lane +
// 32, and so on. The sums have the order of ggml-types/src/turboquant/rotate.rs, so the results match it bit
// for bit. A Rotation is any struct with the `signs` and `shrink` of params.h.
#pragma once

#include "../params.h"
#include "../simt.h"

constexpr uint32_t kLaneElems = CODES_MAX_DIM / kWarpSize;

struct Vector {
    float x[kLaneElems];
    // Elements per lane.
    uint32_t n;

    DEVICE static uint32_t elem(uint32_t j) { return threadIdx.x % kWarpSize + kWarpSize * j; }
};

// If kHalves, transforms the two halves of the vector, each for itself.
template <bool kHalves = false>
DEVICE void hadamard(Vector& v) {
#pragma unroll
    for (uint32_t half = 1; half < kWarpSize; half *= 2) {
        if (kHalves && v.n == 1 && half == kWarpSize / 2) break;
#pragma unroll
        for (uint32_t j = 0; j < kLaneElems; j++) {
            if (j >= v.n) break;
            float other = __shfl_xor_sync(kWarp, v.x[j], half);
            v.x[j] = threadIdx.x & half ? other - v.x[j] : v.x[j] + other;
        }
    }
#pragma unroll
    for (uint32_t half = 1; half < kLaneElems; half *= 2) {
        if (kHalves && 2 * half == v.n) break;
#pragma unroll
        for (uint32_t j = 0; j < kLaneElems; j++) {
            if (j & half || (j | half) >= v.n) continue;
            float low = v.x[j], high = v.x[j | half];
            v.x[j] = low + high;
            v.x[j | half] = low - high;
        }
    }
}

template <class Rotation>
DEVICE void flip(Vector& v, const Rotation& rotation) {
#pragma unroll
    for (uint32_t j = 0; j < kLaneElems; j++) {
        if (rotation.signs[j] >> threadIdx.x % kWarpSize & 1) v.x[j] = -v.x[j];
    }
}

template <class Rotation>
DEVICE void shrink(Vector& v, const Rotation& rotation) {
#pragma unroll
    for (uint32_t j = 0; j < kLaneElems; j++) v.x[j] *= rotation.shrink;
}

template <class Rotation>
DEVICE void rotate(Vector& v, const Rotation& rotation) {
    flip(v, rotation);
    hadamard(v);
    shrink(v, rotation);
}

template <class Rotation>
DEVICE void transform_back(Vector& v, const Rotation& rotation) {
    hadamard(v);
    shrink(v, rotation);
    flip(v, rotation);
}

// Loads [head_dim] elements; a lane's elements past the end are 0.
DEVICE Vector load_vector(const float* from, uint32_t head_dim) {
    Vector v;
    v.n = head_dim / kWarpSize;
#pragma unroll
    for (uint32_t j = 0; j < kLaneElems; j++) v.x[j] = j < v.n ? from[Vector::elem(j)] : 0.0f;
    return v;
}

DEVICE void store_vector(const Vector& v, float* to) {
#pragma unroll
    for (uint32_t j = 0; j < kLaneElems; j++) {
        if (j < v.n) to[Vector::elem(j)] = v.x[j];
    }
}

constexpr float kLargestHalf = 65504.0f;

// Replaces NaN and infinity by 0, and clamps magnitudes to `most`. True if any element of the lane changed.
DEVICE bool keep_within(Vector& v, float most) {
    bool clamped = false;
#pragma unroll
    for (uint32_t j = 0; j < kLaneElems; j++) {
        if (j >= v.n) continue;
        float size = fabsf(v.x[j]);
        if (size <= most) continue;
        clamped = true;
        v.x[j] = size < INFINITY ? copysignf(most, v.x[j]) : 0.0f;
    }
    return clamped;
}

// Counts a clamped vector; all lanes of the warp call it.
DEVICE void count_clamped(uint64_t* count, bool clamped) {
    bool any = __ballot_sync(kWarp, clamped) != 0;
    if (any && threadIdx.x % kWarpSize == 0) atomicAdd(reinterpret_cast<unsigned long long*>(count), 1ull);
}
