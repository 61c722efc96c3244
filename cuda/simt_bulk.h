// Intrinsics of kernels that stream weights through shared memory, in addition to those of simt.h:
//
//   mma_u8_16x8x32                       mma_s8_16x8x32 with an unsigned first operand
//   mma_tf32_16x8x8(c, a, b)             c += a b over floats of which 11 bits of the mantissa count; from
//                                        sm_80 on; mma_tf32_16x8x4 likewise
//   kBulkCopies or has_bulk_copies()     true from sm_90 on: copies of any length, which a barrier counts;
//                                        others copy 16 bytes per thread (cp_async16)
//   CopyBarrier                          8 bytes of shared memory, aligned to 8
//   barrier_init(at, n)                  a phase of the barrier ends after n calls of barrier_expect and the
//                                        bytes that they expect; one thread calls it, then
//                                        barriers_are_there, and all threads __syncthreads
//   barrier_expect(at, bytes)            one of the n calls
//   bulk_copy(at, to, from, bytes)       copies global to shared memory, and counts the bytes at the barrier;
//                                        both addresses and the length are multiples of 16
//   is_elected()                         true for one lane of a warp, all of whose lanes call it: so the
//                                        compiler knows that what it guards runs once
//   barrier_wait(at, parity)             waits for the end of a phase: the first has parity 0, the next 1
//
// The host has both ways of copying, chosen by the seed of a launch.
#pragma once

#include "simt.h"

#ifdef __CUDACC__
// c = a b + from over bytes, those of a unsigned: a is 16 x 32, b 32 x 8.
DEVICE void mma_u8_16x8x32(
    int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int32_t from
) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    c[0] = c[1] = c[2] = c[3] = from;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
            : "+r"(c[i % 2 * 2]), "+r"(c[i % 2 * 2 + 1])
            : "r"(a[i]), "r"(b[i / 2]));
    }
#else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(from));
#endif
}

// c += a b over tf32: a is 16 x 8, b 8 x 8, c 16 x 8 of float.
DEVICE void mma_tf32_16x8x8(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// The same with columns of a and rows of b halved.
DEVICE void mma_tf32_16x8x4(float (&c)[4], const uint32_t (&a)[2], uint32_t b) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
#endif
}

using CopyBarrier = uint64_t;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
DEVICE constexpr bool has_bulk_copies() { return true; }

DEVICE uint32_t shared_address(const void* at) { return static_cast<uint32_t>(__cvta_generic_to_shared(at)); }

DEVICE bool is_elected() {
    uint32_t yes;
    asm volatile(
        "{\n"
        ".reg .pred one;\n"
        "elect.sync _|one, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, one;\n"
        "}"
        : "=r"(yes));
    return yes;
}

DEVICE void barrier_init(CopyBarrier* at, uint32_t n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(at)), "r"(n) : "memory");
}

// Shows initialised barriers to the copies that count there.
DEVICE void barriers_are_there() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

DEVICE void barrier_expect(CopyBarrier* at, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(at)),
                 "r"(bytes)
                 : "memory");
}

DEVICE void bulk_copy(CopyBarrier* at, void* to, const void* from, uint32_t bytes) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(at))
        : "memory");
}

DEVICE void barrier_wait(CopyBarrier* at, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(shared_address(at)),
        "r"(parity)
        : "memory");
}
#else
DEVICE constexpr bool has_bulk_copies() { return false; }
DEVICE bool is_elected() { return threadIdx.x % 32 == 0; }
DEVICE void barrier_init(CopyBarrier*, uint32_t) {}
DEVICE void barriers_are_there() {}
DEVICE void barrier_expect(CopyBarrier*, uint32_t) {}
DEVICE void bulk_copy(CopyBarrier*, void*, const void*, uint32_t) {}
DEVICE void barrier_wait(CopyBarrier*, uint32_t) {}
#endif

#else
#include "host/bulk.h"

DEVICE void mma_u8_16x8x32(
    int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int32_t from
) {
    // Operands unpacks both to signed integers, so the upper bit of a's bytes is a product of its own.
    uint32_t low[4], high[4];
    for (int i = 0; i < 4; i++) {
        low[i] = a[i] & 0x7f7f7f7fu;
        high[i] = a[i] >> 7 & 0x01010101u;
    }
    int32_t of_high[4] = {};
    mma_s8_16x8x32(c, low, b, from);
    mma_s8_16x8x32(of_high, high, b);
    for (int i = 0; i < 4; i++) c[i] += 128 * of_high[i];
}

DEVICE void mma_tf32_16x8x8(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    Operands<float, 1> of(a, b, [](uint32_t word, float* to) { *to = __uint_as_float(word & 0xffffe000u); });
    for (int i = 0; i < 4; i++) {
        float row[16] = {}, col[16] = {};
        memcpy(row, of.row[i / 2], sizeof of.row[0]);
        memcpy(col, of.col[i % 2], sizeof of.col[0]);
        c[i] = simt::truncated_sum(c[i], row, col);
    }
}

DEVICE void mma_tf32_16x8x4(float (&c)[4], const uint32_t (&a)[2], uint32_t b) {
    mma_tf32_16x8x8(c, {a[0], a[1], 0, 0}, {b, 0});
}

using simt::barrier_expect;
using simt::barrier_init;
using simt::barrier_wait;
using simt::bulk_copy;
using simt::CopyBarrier;
using simt::has_bulk_copies;
DEVICE void barriers_are_there() {}
DEVICE bool is_elected() { return threadIdx.x % 32 == 0; }
#endif
