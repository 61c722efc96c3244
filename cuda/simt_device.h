// simt.h for the GPU.
#pragma once

#include <cuda_fp16.h>

#define KERNEL(name, Params, threads) RESIDENT_KERNEL(name, Params, threads, 2)
#define RESIDENT_KERNEL(name, Params, threads, blocks)                                                 \
    extern "C" __global__ void __launch_bounds__(threads, blocks) name(const __grid_constant__ Params p)
#define CONSTANT(T, name, n) \
    extern "C" {             \
    __constant__ T name[n];  \
    }
#define SHARED(T, name, n) __shared__ __align__(16) T name[n]
#define DEVICE __device__ __forceinline__

DEVICE uint8_t* shared_memory() {
    extern __shared__ __align__(16) uint8_t memory[];
    return memory;
}

DEVICE void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

DEVICE uint4 load_stream16(const void* at) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}

DEVICE uint4 load16(const void* at) {
    return *static_cast<const uint4*>(at);
}

DEVICE uint2 load8(const void* at) {
    return *static_cast<const uint2*>(at);
}

DEVICE uint32_t load4(const void* at) {
    return *static_cast<const uint32_t*>(at);
}

DEVICE float float_of_half(uint16_t bits) {
    return __half2float(__ushort_as_half(bits));
}

DEVICE uint16_t half_bits(float x) {
    return __half_as_ushort(__float2half_rn(x));
}

DEVICE float2 floats_of_half2(uint32_t bits) {
    return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}

DEVICE uint32_t half2_bits(float low, float high) {
    __half2 two = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&two);
}

DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEVICE int32_t dp4a_unsigned(uint32_t a, int32_t b, int32_t c) {
    int32_t sum;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
    return sum;
}

// Accurate to two units in the last place.
DEVICE float rsqrt_near(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Turing (compute capability 7.5) has smaller tensor core products, no asynchronous copies and no integer
// warp reductions: the functions below build them from what it has.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
// c += a b over int8: a is 8 x 16, b 16 x 8.
DEVICE void mma_s8_8x8x16(int32_t& c0, int32_t& c1, uint32_t a, uint32_t b) {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+r"(c0), "+r"(c1)
        : "r"(a), "r"(b));
}

DEVICE void mma_s8_16x8x32(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        mma_s8_8x8x16(c[0], c[1], a[2 * half], b[half]);
        mma_s8_8x8x16(c[2], c[3], a[2 * half + 1], b[half]);
    }
}

DEVICE void mma_s8_16x8x32(
    int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int32_t from
) {
    c[0] = c[1] = c[2] = c[3] = from;
    mma_s8_16x8x32(c, a, b);
}

DEVICE void mma_s8_16x8x16(int32_t (&c)[4], const uint32_t (&a)[2], uint32_t b, int32_t from) {
    c[0] = c[1] = c[2] = c[3] = from;
    mma_s8_8x8x16(c[0], c[1], a[0], b);
    mma_s8_8x8x16(c[2], c[3], a[1], b);
}

DEVICE void mma_f16_16x8x16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
    }
}

// Copies synchronously.
DEVICE void cp_async16(void* to_shared, const void* from_global) {
    *static_cast<uint4*>(to_shared) = *static_cast<const uint4*>(from_global);
}
DEVICE void cp_async_commit() {}
template <int Left>
DEVICE void cp_async_wait() {}

DEVICE int32_t __reduce_add_sync(uint32_t mask, int32_t x) {
#pragma unroll
    for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(mask, x, by);
    return x;
}
DEVICE uint32_t __reduce_max_sync(uint32_t mask, uint32_t x) {
#pragma unroll
    for (int by = 16; by > 0; by /= 2) {
        uint32_t other = __shfl_xor_sync(mask, x, by);
        x = other > x ? other : x;
    }
    return x;
}
#else
DEVICE void cp_async16(void* to_shared, const void* from_global) {
    uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(to_shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from_global) : "memory");
}

DEVICE void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `Left` of this thread's copy groups are in flight.
template <int Left>
DEVICE void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

// c += a b over int8: a is 16 x 32, b 32 x 8, c 16 x 8 of int32.
DEVICE void mma_s8_16x8x32(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c = a b + from over int8: a is 16 x 32, b 32 x 8.
DEVICE void mma_s8_16x8x32(
    int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int32_t from
) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %10, %10, %10};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(from));
}

// The same for half as many columns: a is 16 x 16, b 16 x 8.
DEVICE void mma_s8_16x8x16(int32_t (&c)[4], const uint32_t (&a)[2], uint32_t b, int32_t from) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%7, %7, %7, %7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "r"(from));
}

// c += a b over halves: a is 16 x 16, b 16 x 8, c 16 x 8 of float.
DEVICE void mma_f16_16x8x16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// Four 8 x 8 matrices of f16 from shared memory: lanes 8 i to 8 i + 7 pass the 16-byte rows of matrix i. Lane
// 4 r + c gets elements 2 c and 2 c + 1 of row r of each, or of column r if transposed.
template <bool Transposed>
DEVICE void load_matrices(uint32_t (&to)[4], const void* row) {
    uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
    if constexpr (Transposed) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(from)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(from)
                     : "memory");
    }
}

// Transposes an 8 x 8 matrix of f16: lane 4 r + c passes elements 2 c and 2 c + 1 of row r, and gets those of
// column r.
DEVICE uint32_t transpose_matrix(uint32_t two) {
    uint32_t to;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(two));
    return to;
}

DEVICE uint32_t recomputed(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}

DEVICE void prefetch_l2(const void* at) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

// Adds 1 and returns the previous value. Writes of the block before its last barrier are visible to the
// blocks that arrive later, after their next barrier.
DEVICE uint32_t arrive(uint32_t* at) {
    uint32_t before;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(at) : "memory");
    return before;
}

DEVICE uint64_t clock_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

DEVICE void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEVICE void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
