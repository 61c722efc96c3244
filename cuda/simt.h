// Intrinsics for kernels: CUDA's names where CUDA has one, and our own for bare PTX instructions. Kernels use
// nothing else, so the same sources compile for a GPU (nvcc) and for the host (any C++17 compiler), where
// host/runtime.cpp runs the threads of a block as fibers.
//
//   threadIdx.x blockIdx.{x,y,z} blockDim.x gridDim.x    indices; blocks have one dimension
//   __syncthreads() named_barrier(id, threads)           block barriers
//   __shfl_sync __shfl_xor_sync __ballot_sync __syncwarp whole warps: the mask is always kWarp
//   __reduce_add_sync __reduce_max_sync                  integer reductions of a warp
//   __dp4a __popc __byte_perm                            integers
//   dp4a_unsigned                                        __dp4a with unsigned first bytes
//   atomicAdd atomicMax __threadfence                    memory shared between blocks
//   arrive                                               adds 1 to a counter of blocks, and orders memory
//   shared_memory()                                      dynamic shared memory, 16-byte aligned
//   load_stream16 load16                                 16 bytes: of weights, read only once; of anything
//   load8 load4                                          8 or 4 bytes, checked and counted like load16
//   half_bits float_of_half                              f16 as bits; conversions round to nearest even
//   half2_bits floats_of_half2                           two f16 in a word, the first in the low half
//   floats_of_bfloat2                                    two bf16, the upper halves of floats
//   exp2_fast rsqrt_near                                 2^x and about 1 / sqrt(x): the GPU's approximations
//   cp_async16 cp_async_commit cp_async_wait             asynchronous copies from global to shared memory
//   mma_s8_16x8x32 mma_s8_16x8x16 mma_f16_16x8x16        tensor cores, on a warp's registers
//   load_matrices<transposed>                            their operands from shared memory
//   transpose_matrix                                     an operand from other lanes' registers
//   wait_for_previous_kernel let_next_kernel_start       programmatic dependent launch (sm_90 and later)
//   clock_ns                                             nanoseconds from an arbitrary start
//   recomputed                                           a value whose origin is hidden from the compiler
//   prefetch_l2                                          a 128-byte line into the L2 cache
//
// CONSTANT(T, name, n) is an array in constant memory, which the host writes before the first launch
// (Driver::upload_constant). SHARED(T, name, n) in a kernel is a statically sized array in shared memory,
// separate from the launch's dynamic part.
//
// A kernel is KERNEL(name, Params, threads) { ... } with its parameters as `p`. RESIDENT_KERNEL(name, Params,
// threads, blocks) sets the number of resident blocks per multiprocessor, which is otherwise two. A product
// and a sum are contracted only where a kernel calls fmaf.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#include "simt_device.h"
#else
#include "host/simt_host.h"
#endif

constexpr uint32_t kWarp = 0xffffffffu;
constexpr int kWarpSize = 32;

DEVICE float2 floats_of_bfloat2(uint32_t bits) {
    return make_float2(__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u));
}
