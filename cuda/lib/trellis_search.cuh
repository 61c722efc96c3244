// The search for trellis codes: the Viterbi algorithm of ggml-types/src/turboquant/trellis.rs, to the bit.
//
// A state is what the next window shares with the last one: all codes but the oldest, which is the branch by
// which a state is reached. Each element of a vector takes one step,
//
//   cost(state) = min over branches of cost before + 2 v^2 - 2 v x
//
// with the value v of the window and the element x. A lane owns a state of a vector, so that a warp searches
// for the codes of two or four vectors at once, and keeps the terms of its windows in registers. Costs are
// multiplied by the number of branches, and the branch is added, so that the least cost contains it, the
// first of equal ones. Costs are exchanged in shared memory; the branches stay there for the way back, eight
// elements to a word.
#pragma once

#include "../params.h"
#include "../simt.h"

// Steps that an element of the search has per deviation, and its largest magnitude.
constexpr int32_t kSearchSteps = 64, kSearchMost = 8 * kSearchSteps - 1;

// A vector, or a group of one, as integers: an element is about q 2^-exponent.
struct Searched {
    int32_t exponent;
    // Sum of the squares of q.
    uint32_t square;
    // Factor that makes q an element of the search, in steps of 2^-16.
    int32_t factor;
    // Sums over the codes found: of their values times q, and of the squares of their values.
    int32_t along;
    int32_t code_square;

    DEVICE void find_factor(uint32_t n) {
        constexpr uint64_t kSteps = uint64_t(kSearchSteps) * kSearchSteps << 32;
        // Below 2^53, so that the root is exact but for its last bit, which is far from an integer.
        factor = square == 0 ? 0 : int32_t(sqrt(double(n * kSteps / square)));
    }
    // a / b in units of the elements, which are those of values.
    DEVICE double scale(uint32_t a, int32_t b) const {
        if (b <= 0) return 0.0;
        double unit = double(__uint_as_float(uint32_t(127 - exponent) << 23));
        return 32.0 * double(a) / double(b) * unit;
    }
};

// Shared memory of a search: exchanged costs and branches of a warp. A vector of n elements and states times
// four bits of branches per element; `n` is the number of elements of a whole vector.
struct SearchRoom {
    int32_t* costs;
    uint32_t* branches;

    // Words of a warp.
    DEVICE static uint32_t words(uint32_t head_dim) { return 2 * kWarpSize + 4 * head_dim; }
    DEVICE SearchRoom(uint32_t* words)
        : costs(reinterpret_cast<int32_t*>(words)), branches(words + 2 * kWarpSize) {}
};

template <uint32_t kBits, uint32_t kWindow>
struct PathSearch {
    static constexpr uint32_t kStates = 1u << (kWindow - kBits), kBranches = 1u << kBits,
        kVectors = kWarpSize / kStates, kAtOnce = 8;

    const TrellisTables& tables;
    SearchRoom room;
    // The lane's state, and the first lane of its vector.
    uint32_t state, first;
    int32_t constants[kBranches], factors[kBranches];

    DEVICE PathSearch(const TrellisTables& tables, const SearchRoom& room)
        : tables(tables), room(room), state(threadIdx.x % kStates),
          first(threadIdx.x % kWarpSize / kStates * kStates) {
#pragma unroll
        for (uint32_t b = 0; b < kBranches; b++) {
            int32_t v = value(b * kStates + state);
            constants[b] = 2 * v * v * int32_t(kBranches) + int32_t(b);
            factors[b] = -2 * v * int32_t(kBranches);
        }
    }

    // Value of a window, whose last code is in the low bits.
    DEVICE int32_t value(uint32_t window) const {
        if constexpr (kBits == 3) {
            uint32_t index = window >> 3 | (window & 7u) << 3;
            return int32_t(floats_of_half2(tables.three[index]).x * 32.0f);
        } else {
            uint32_t index = kBits == 4 ? window >> 4 | (window & 15u) << 4
                                        : window >> 4 | (window & 12u) | (window & 3u) << 4;
            const uint32_t* table = kBits == 4 ? tables.four : tables.two;
            return int8_t(table[index / 2] >> (16 * (index % 2)));
        }
    }

    // Costs of all states before an element: those that the lane's branches come from.
    DEVICE void load_costs(const int32_t* costs, int32_t (&to)[kBranches]) const {
        if constexpr (kStates == kBranches) {
#pragma unroll
            for (uint32_t b = 0; b < kBranches; b += 4) {
                int4 four = *reinterpret_cast<const int4*>(costs + first + b);
                to[b] = four.x;
                to[b + 1] = four.y;
                to[b + 2] = four.z;
                to[b + 3] = four.w;
            }
        } else {
#pragma unroll
            for (uint32_t b = 0; b < kBranches; b++) to[b] = costs[first + ((b * kStates + state) >> kBits)];
        }
    }

    // Advances by n elements, a multiple of 8, from `q` on. Their branches are those from element `at` on.
    DEVICE void advance(const uint16_t* q, uint32_t n, uint32_t at, int32_t factor) const {
        uint32_t lane = threadIdx.x % kWarpSize;
#pragma unroll 1
        for (uint32_t i = 0; i < n; i += kAtOnce) {
            uint4 eight = *reinterpret_cast<const uint4*>(q + i);
            uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w}, taken = 0;
#pragma unroll
            for (uint32_t k = 0; k < kAtOnce; k++) {
                int32_t x = (int16_t(words[k / 2] >> (16 * (k % 2))) * factor + (1 << 15)) >> 16;
                x = x < -kSearchMost ? -kSearchMost : x > kSearchMost ? kSearchMost : x;
                int32_t before[kBranches];
                load_costs(room.costs + k % 2 * kWarpSize, before);
                int32_t least = before[0] + (constants[0] + factors[0] * x);
#pragma unroll
                for (uint32_t b = 1; b < kBranches; b++) {
                    int32_t cost = before[b] + (constants[b] + factors[b] * x);
                    least = cost < least ? cost : least;
                }
                uint32_t branch = uint32_t(least) & (kBranches - 1);
                taken |= branch << (4 * k);
                room.costs[(k + 1) % 2 * kWarpSize + lane] = least - int32_t(branch);
                __syncwarp();
            }
            room.branches[(at + i) / kAtOnce * kWarpSize + lane] = taken;
        }
    }

    // The window of element i on the path to a state.
    DEVICE uint32_t window(uint32_t i, uint32_t of_state) const {
        uint32_t word = room.branches[i / kAtOnce * kWarpSize + first + of_state];
        return (word >> (4 * (i % kAtOnce)) & 15u) * kStates + of_state;
    }

    // Replaces the n elements q of the lane's vector, a multiple of 16, by their codes. All lanes of a warp
    // call it.
    DEVICE void find(uint16_t* q, uint32_t n, Searched& of) const {
        constexpr int32_t kFar = 1 << 27;
        uint32_t lane = threadIdx.x % kWarpSize, side = n / 2 < TRELLIS_SEAM ? n / 2 : TRELLIS_SEAM;
        int32_t factor = of.factor;
        // The elements before the seam and after it, from any state to any state; then all of them, from the
        // state at the seam to itself.
        uint32_t at_seam = 0;
        room.costs[lane] = 0;
        __syncwarp();
#pragma unroll 1
        for (uint32_t part = 0; part < 3; part++) {
            uint32_t begin = part == 0 ? n - side : 0, length = part == 2 ? n : side;
            if (part == 2) {
                int32_t least = room.costs[first];
                for (uint32_t s = 1; s < kStates; s++) {
                    int32_t cost = room.costs[first + s];
                    at_seam = cost < least ? s : at_seam;
                    least = cost < least ? cost : least;
                }
                for (uint32_t i = 2 * side; i > side; i--) at_seam = window(i - 1, at_seam) >> kBits;
                __syncwarp();
                room.costs[lane] = state == at_seam ? 0 : kFar;
                __syncwarp();
            }
            advance(q + begin, length, part == 1 ? side : 0, factor);
            __syncwarp();
        }
        if (state == 0) {
            int32_t along = 0, square = 0;
            uint32_t on_path = at_seam;
#pragma unroll 1
            for (uint32_t i = n; i > 0; i--) {
                uint32_t found = window(i - 1, on_path);
                int32_t v = value(found);
                along += v * int16_t(q[i - 1]);
                square += v * v;
                q[i - 1] = uint16_t(found & (kBranches - 1));
                on_path = found >> kBits;
            }
            of.along = along;
            of.code_square = square;
        }
        __syncwarp();
    }
};
