// Instantiates the kernels of a weight type in octets for 2 to OCTET_MAX_ROWS rows quantised by block, in
// addition to those of kernels.cuh: STERNA_OCTET_KERNELS(Q4K, q4_k) defines attn_in__q4_k__octets and so on.
// One block per multiprocessor has registers: on most GPUs its ring takes all of the shared memory.
#pragma once

#include "kernels.cuh"
#include "linear_octets.cuh"

#define STERNA_OCTET_KERNEL(stage, Params, Task, Type, type)                \
    RESIDENT_KERNEL(stage##__##type##__octets, Params, LINEAR_THREADS, 1) { \
        run_linear_octets<Type>(p.step, p.in, Task{p});                     \
    }

#define STERNA_OCTET_KERNELS(Type, type)                                  \
    STERNA_OCTET_KERNEL(attn_in, AttnInParams, AttnInTask, Type, type)    \
    STERNA_OCTET_KERNEL(proj_add, ProjAddParams, ProjAddTask, Type, type) \
    STERNA_OCTET_KERNEL(ffn_in, FfnInParams, FfnInTask, Type, type)       \
    STERNA_OCTET_KERNEL(logits, LogitsParams, LogitsTask, Type, type)
