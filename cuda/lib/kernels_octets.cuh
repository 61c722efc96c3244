// Instantiates the kernels of a weight type in octets for rows quantised by block, in addition to those of
// kernels.cuh: STERNA_OCTET_KERNELS(Q4K, q4_k) defines attn_in__q4_k__octets8 and so on for 8, 16 and 32 rows
// at a time, STERNA_OCTET64_KERNELS those for 64, which not every type has the registers for. The former
// leave registers for a block of another kernel. STERNA_OCTETS_MANY_KERNELS defines those for more rows,
// attn_in__q4_k__octets_many and so on.
#pragma once

#include "kernels.cuh"
#include "linear_octets.cuh"
#include "linear_octets_many.cuh"

#define STERNA_OCTET_KERNEL(stage, Params, Task, Type, type, rows, blocks)                \
    RESIDENT_KERNEL(stage##__##type##__octets##rows, Params, LINEAR_THREADS, blocks) { \
        run_linear_octets<Type, rows / 8>(p.step, p.in, Task{p});                         \
    }

#define STERNA_OCTET_KERNELS_OF(Type, type, rows, blocks)                               \
    STERNA_OCTET_KERNEL(attn_in, AttnInParams, AttnInTask, Type, type, rows, blocks)    \
    STERNA_OCTET_KERNEL(proj_add, ProjAddParams, ProjAddTask, Type, type, rows, blocks) \
    STERNA_OCTET_KERNEL(ffn_in, FfnInParams, FfnInTask, Type, type, rows, blocks)       \
    STERNA_OCTET_KERNEL(logits, LogitsParams, LogitsTask, Type, type, rows, blocks)

#define STERNA_OCTET_KERNELS(Type, type)         \
    STERNA_OCTET_KERNELS_OF(Type, type, 8, 2)  \
    STERNA_OCTET_KERNELS_OF(Type, type, 16, 2) \
    STERNA_OCTET_KERNELS_OF(Type, type, 32, 2)

#define STERNA_OCTET64_KERNELS(Type, type) STERNA_OCTET_KERNELS_OF(Type, type, 64, 1)

#define STERNA_OCTETS_MANY_KERNEL(stage, Params, Task, Type, type)   \
    KERNEL(stage##__##type##__octets_many, Params, LINEAR_THREADS) { \
        run_linear_octets_many<Type>(p.step, p.in, Task{p});         \
    }

#define STERNA_OCTETS_MANY_KERNELS(Type, type)                                  \
    STERNA_OCTETS_MANY_KERNEL(attn_in, AttnInParams, AttnInTask, Type, type)    \
    STERNA_OCTETS_MANY_KERNEL(proj_add, ProjAddParams, ProjAddTask, Type, type) \
    STERNA_OCTETS_MANY_KERNEL(ffn_in, FfnInParams, FfnInTask, Type, type)       \
    STERNA_OCTETS_MANY_KERNEL(logits, LogitsParams, LogitsTask, Type, type)
