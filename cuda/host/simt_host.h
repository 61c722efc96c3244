// simt.h for the host: plain functions on the fibers of runtime.cpp.
#pragma once

#include <math.h>
#include <string.h>

#include "runtime.h"

#define DEVICE inline

// build.rs defines one symbol per kernel file, and the driver references all of them, so that the linker
// keeps them.
#ifdef STERNA_UNIT
extern "C" void STERNA_UNIT();
void STERNA_UNIT() {}
#endif

#define __device__
#define __restrict__ __restrict
#define __align__(n) alignas(n)

#define STERNA_TEXT_OF(name) #name
#define STERNA_TEXT(name) STERNA_TEXT_OF(name)

// A kernel registers itself in the table that simt_find searches.
#define KERNEL(name, Params, threads)                                                     \
    static void name##_body(const Params& p);                                             \
    static const simt::Entry name##_entry(                                                \
        #name, STERNA_TEXT(STERNA_UNIT), sizeof(Params), threads,                         \
        [](const void* p) { name##_body(*static_cast<const Params*>(p)); });              \
    static void name##_body(const Params& p)

#define RESIDENT_KERNEL(name, Params, threads, blocks) KERNEL(name, Params, threads)

#define CONSTANT(T, name, n) \
    static T name[n];        \
    static const simt::Constant name##_constant(#name, STERNA_TEXT(STERNA_UNIT), name, sizeof name)

#define SHARED(T, name, n)             \
    static const char name##_place = 0; \
    T(&name)[n] = *reinterpret_cast<T(*)[n]>(simt::static_shared(&name##_place, sizeof(T) * (n)))

struct alignas(8) uint2 { uint32_t x, y; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int32_t x, y, z, w; };

DEVICE int4 make_int4(int32_t x, int32_t y, int32_t z, int32_t w) { return {x, y, z, w}; }
DEVICE uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
DEVICE float2 make_float2(float x, float y) { return {x, y}; }
DEVICE float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#define threadIdx (simt::current->index)
#define blockIdx (simt::current->block->index)
#define blockDim (simt::current->block->threads)
#define gridDim (simt::current->block->grid)

DEVICE uint8_t* shared_memory() { return simt::current->block->shared; }
DEVICE void __syncthreads() { simt::barrier(0, simt::current->block->threads.x); }
DEVICE void named_barrier(int id, int threads) { simt::barrier(id, threads); }
DEVICE void __syncwarp(uint32_t mask = 0xffffffffu) { simt::exchange(mask, nullptr, 0); }
DEVICE void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class T>
DEVICE T __shfl_xor_sync(uint32_t mask, T value, int lane_mask) {
    const uint8_t* all = simt::exchange(mask, &value, sizeof value);
    T other;
    memcpy(&other, all + (simt::current->lane ^ lane_mask) * simt::kSlotBytes, sizeof other);
    return other;
}

template <class T>
DEVICE T __shfl_sync(uint32_t mask, T value, int lane) {
    const uint8_t* all = simt::exchange(mask, &value, sizeof value);
    T other;
    memcpy(&other, all + (lane & 31) * simt::kSlotBytes, sizeof other);
    return other;
}

DEVICE uint32_t __ballot_sync(uint32_t mask, bool vote) {
    const uint8_t* all = simt::exchange(mask, &vote, sizeof vote);
    uint32_t votes = 0;
    for (int lane = 0; lane < 32; lane++) votes |= uint32_t(all[lane * simt::kSlotBytes] != 0) << lane;
    return votes;
}

DEVICE int32_t __reduce_add_sync(uint32_t mask, int32_t value) {
    const uint8_t* all = simt::exchange(mask, &value, sizeof value);
    uint32_t sum = 0;
    for (int lane = 0; lane < 32; lane++) {
        uint32_t of_lane;
        memcpy(&of_lane, all + lane * simt::kSlotBytes, sizeof of_lane);
        sum += of_lane;
    }
    return static_cast<int32_t>(sum);
}

DEVICE uint32_t __reduce_max_sync(uint32_t mask, uint32_t value) {
    const uint8_t* all = simt::exchange(mask, &value, sizeof value);
    uint32_t most = 0;
    for (int lane = 0; lane < 32; lane++) {
        uint32_t of_lane;
        memcpy(&of_lane, all + lane * simt::kSlotBytes, sizeof of_lane);
        if (of_lane > most) most = of_lane;
    }
    return most;
}

DEVICE int32_t __dp4a(int32_t a, int32_t b, int32_t c) {
    for (int i = 0; i < 32; i += 8) c += int32_t(int8_t(a >> i)) * int32_t(int8_t(b >> i));
    return c;
}

DEVICE int32_t dp4a_unsigned(uint32_t a, int32_t b, int32_t c) {
    for (int i = 0; i < 32; i += 8) c += int32_t(uint8_t(a >> i)) * int32_t(int8_t(b >> i));
    return c;
}

DEVICE int __popc(uint32_t x) { return __builtin_popcount(x); }
DEVICE uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
    uint64_t bytes = uint64_t(high) << 32 | low;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t pick = selector >> (4 * i);
        uint32_t byte = uint32_t(bytes >> (8 * (pick & 7))) & 255u;
        if (pick & 8u) byte = byte & 128u ? 255u : 0u;
        out |= byte << (8 * i);
    }
    return out;
}

template <class T> DEVICE T from_bits(uint32_t bits) { T t; memcpy(&t, &bits, 4); return t; }
DEVICE float __uint_as_float(uint32_t bits) { return from_bits<float>(bits); }
DEVICE float __int_as_float(int32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
DEVICE uint32_t __float_as_uint(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

DEVICE int32_t atomicAdd(int32_t* at, int32_t by) { return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST); }
DEVICE uint32_t atomicAdd(uint32_t* at, uint32_t by) { return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST); }
DEVICE uint32_t arrive(uint32_t* at) {
    if (simt::kFindsRaces) simt::race_arrive(at);
    return __atomic_fetch_add(at, 1u, __ATOMIC_SEQ_CST);
}
DEVICE unsigned long long atomicAdd(unsigned long long* at, unsigned long long by) {
    return __atomic_fetch_add(at, by, __ATOMIC_SEQ_CST);
}
DEVICE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}

DEVICE uint4 load16(const void* at) {
    simt::check_access(at, 16);
    return *static_cast<const uint4*>(at);
}
DEVICE uint2 load8(const void* at) {
    simt::check_access(at, 8);
    return *static_cast<const uint2*>(at);
}
DEVICE uint32_t load4(const void* at) {
    simt::check_access(at, 4);
    return *static_cast<const uint32_t*>(at);
}
DEVICE uint4 load_stream16(const void* at) { return load16(at); }

DEVICE float float_of_half(uint16_t bits) { return simt::float_of_half(bits); }
DEVICE uint16_t half_bits(float x) { return simt::half_of_float(x); }
DEVICE float2 floats_of_half2(uint32_t bits) {
    return {simt::float_of_half(uint16_t(bits)), simt::float_of_half(uint16_t(bits >> 16))};
}
DEVICE uint32_t half2_bits(float low, float high) { return half_bits(low) | uint32_t(half_bits(high)) << 16; }
// GPUs guarantee an error of two units in the last place, so this adds a pseudo-random error in that range
// that depends only on the input. Subnormal results become 0.
DEVICE float disturbed(float y, float x) {
    uint32_t bits = __float_as_uint(y), magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x00800000u) return 0.0f;
    if (magnitude >= 0x7f7ffff0u) return y;
    uint32_t mixed = __float_as_uint(x) * 0x9e3779b1u;
    return __uint_as_float(bits + (mixed >> 16) % 5 - 2);
}
DEVICE float exp2_fast(float x) { return fabsf(x) < 0x1p-126f ? 1.0f : disturbed(exp2f(x), x); }
DEVICE float rsqrt_near(float x) { return disturbed(1.0f / sqrtf(x), x); }

DEVICE void cp_async16(void* to_shared, const void* from_global) {
    simt::check_access(from_global, 16);
    simt::check_access(to_shared, 16);
    simt::cp_async(to_shared, from_global);
}
DEVICE void cp_async_commit() { simt::cp_async_commit(); }
template <int Left> DEVICE void cp_async_wait() { simt::cp_async_wait(Left); }

// Operand layouts are those of the PTX manual: lane = 4 group + member. A lane contributes words of two rows
// of A and of one column of B, in two parts each, and needs two whole rows and columns for its four results.
// It unpacks its own words before the exchange: N elements of type `Elem` per word.
template <class Elem, int N>
struct Operands {
    Elem row[2][8 * N], col[2][8 * N];

    // `unpack(word, to)` writes the N elements of a word.
    template <class Unpack>
    DEVICE Operands(const uint32_t (&a)[4], const uint32_t (&b)[2], Unpack unpack) {
        Elem mine[6 * N];
        for (int word = 0; word < 4; word++) unpack(a[word], mine + N * word);
        for (int word = 0; word < 2; word++) unpack(b[word], mine + N * (4 + word));
        constexpr size_t kWordBytes = N * sizeof(Elem);
        const uint8_t* all = simt::exchange(0xffffffffu, mine, sizeof mine);
        int group = simt::current->lane / 4, member = simt::current->lane % 4;
        for (int k = 0; k < 4; k++) {
            const uint8_t* of_row = all + (4 * group + k) * simt::kSlotBytes;
            for (int i = 0; i < 2; i++) {
                const uint8_t* of_col = all + (4 * (2 * member + i) + k) * simt::kSlotBytes;
                for (int part = 0; part < 2; part++) {
                    int to = N * (4 * part + k);
                    memcpy(row[i] + to, of_row + (2 * part + i) * kWordBytes, kWordBytes);
                    memcpy(col[i] + to, of_col + (4 + part) * kWordBytes, kWordBytes);
                }
            }
        }
    }
};

DEVICE void mma_s8_16x8x32(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    Operands<int16_t, 4> of(a, b, [](uint32_t word, int16_t* to) {
        for (int i = 0; i < 4; i++) to[i] = int8_t(word >> (8 * i));
    });
    for (int i = 0; i < 4; i++) {
        int32_t sum = 0;
        for (int k = 0; k < 32; k++) sum += int32_t(of.row[i / 2][k]) * int32_t(of.col[i % 2][k]);
        c[i] += sum;
    }
}

DEVICE void mma_s8_16x8x32(
    int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int32_t from
) {
    for (int i = 0; i < 4; i++) c[i] = from;
    mma_s8_16x8x32(c, a, b);
}

DEVICE void mma_s8_16x8x16(int32_t (&c)[4], const uint32_t (&a)[2], uint32_t b, int32_t from) {
    // The other half of the 32 columns is 0.
    uint32_t rows[4] = {a[0], a[1], 0, 0}, cols[2] = {b, 0};
    mma_s8_16x8x32(c, rows, cols, from);
}

DEVICE void mma_f16_16x8x16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    Operands<float, 2> of(a, b, [](uint32_t word, float* to) {
        to[0] = simt::float_of_half(uint16_t(word));
        to[1] = simt::float_of_half(uint16_t(word >> 16));
    });
    for (int i = 0; i < 4; i++) c[i] = simt::truncated_sum(c[i], of.row[i / 2], of.col[i % 2]);
}

template <bool Transposed>
DEVICE void load_matrices(uint32_t (&to)[4], const void* row) {
    simt::check_access(row, 16);
    const uint8_t* all = simt::exchange(0xffffffffu, &row, sizeof row);
    int group = simt::current->lane / 4, member = simt::current->lane % 4;
    for (int matrix = 0; matrix < 4; matrix++) {
        uint16_t two[2];
        for (int i = 0; i < 2; i++) {
            int at = Transposed ? 2 * member + i : group, elem = Transposed ? group : 2 * member + i;
            const uint8_t* from;
            memcpy(&from, all + (8 * matrix + at) * simt::kSlotBytes, sizeof from);
            memcpy(&two[i], from + 2 * elem, sizeof two[i]);
        }
        to[matrix] = two[0] | uint32_t(two[1]) << 16;
    }
}

DEVICE uint32_t transpose_matrix(uint32_t two) {
    const uint8_t* all = simt::exchange(0xffffffffu, &two, sizeof two);
    int group = simt::current->lane / 4, member = simt::current->lane % 4;
    uint16_t to[2];
    for (int i = 0; i < 2; i++) {
        const uint8_t* row = all + (4 * (2 * member + i) + group / 2) * simt::kSlotBytes;
        memcpy(&to[i], row + 2 * (group % 2), sizeof to[i]);
    }
    return to[0] | uint32_t(to[1]) << 16;
}

DEVICE uint32_t recomputed(uint32_t x) { return x; }
DEVICE void prefetch_l2(const void* at) { simt::check_access(at, 1); }

DEVICE uint64_t clock_ns() { return simt::clock_ns(); }
DEVICE void wait_for_previous_kernel() { simt::wait_for_previous_kernel(); }
DEVICE void let_next_kernel_start() {}
