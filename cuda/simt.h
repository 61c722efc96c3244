// What kernels are written with: CUDA's own words where CUDA has one, and a name of ours where it has only an
// instruction. Kernels use nothing else, so that the same sources compile for a card (nvcc) and for the host
// (any C++17 compiler), where host/runtime.cpp runs the threads of a block as fibers.
//
//   threadIdx.x blockIdx.{x,y,z} blockDim.x gridDim.x    indices; blocks have one dimension
//   __syncthreads() named_barrier(id, threads)           barriers of a block
//   __shfl_sync __shfl_xor_sync __ballot_sync __syncwarp a whole warp: the mask is kWarp
//   __reduce_add_sync __reduce_max_sync                  of a warp's integers
//   __dp4a __popc __byte_perm                            integers
//   dp4a_unsigned                                        __dp4a whose first bytes have no sign
//   atomicAdd atomicMax __threadfence                    memory that blocks share
//   arrive                                               adds 1 to a counter of blocks, and orders memory
//   shared_memory()                                      the launch's dynamic shared memory, 16-byte aligned
//   load_stream16 load16 16 bytes: of weights, that nobody reads twice; of anything
//   load8 load4                                          so many bytes, that are checked and counted alike
//   half_bits float_of_half                              halves as bits; conversions round to nearest even
//   half2_bits floats_of_half2                           two of them in a word, the first one low
//   floats_of_bfloat2                                    two bfloat16, the upper halves of floats
//   exp2_fast rsqrt_near                                 2^x, and about 1 / sqrt(x): the card's own
//   cp_async16 cp_async_commit cp_async_wait copies from global to shared memory behind one's back
//   mma_s8_16x8x32 mma_s8_16x8x16 mma_f16_16x8x16        tensor cores, on a warp's registers
//   load_matrices<transposed>                            their operands from shared memory
//   transpose_matrix                                     an operand from the other lanes' registers
//   wait_for_previous_kernel let_next_kernel_start programmatic dependent launch, where there is such a thing
//   clock_ns                                             nanoseconds, from no point in particular
//   recomputed                                           a value of which the compiler remembers nothing
//   prefetch_l2 brings a line of memory to the card's cache, 128 bytes
//
// CONSTANT(T, name, n) is an array in constant memory, which the host writes before the first launch
// (Driver::upload_constant). SHARED(T, name, n) in a kernel is an array in shared memory of a size that the
// compiler knows, beside the launch's dynamic part.
//
// A kernel is KERNEL(name, Params, threads) { ... } with its parameters as `p`, or RESIDENT_KERNEL(name,
// Params, threads, blocks) where that many blocks are to fit a multiprocessor instead of two; nothing
// contracts a product and a sum into one rounding but fmaf.
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
