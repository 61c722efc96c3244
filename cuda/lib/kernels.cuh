// Instantiates the kernels of one weight type. STERNA_KERNELS(F16, f16) defines embed__f16, attn_in__f16 for
// single rows, attn_in__f16__rows for several, and so on; STERNA_MMA_KERNELS(F16, f16) defines
// attn_in__f16__mma for many. STERNA_CODES_KERNELS(Q8_0, q8_0) defines the latter and, for inputs quantised
// by block, attn_in__q8_0__dp4a (one row), attn_in__q8_0__few and attn_in__q8_0__codes. Types with integer
// products also have STERNA_QUANTIZE_KERNEL; they have no `rows` kernels where tensor cores compute the same
// sums.
#pragma once

#include "../stage/attn_in.cuh"
#include "../stage/embed.cuh"
#include "../stage/experts.cuh"
#include "../stage/ffn_in.cuh"
#include "../stage/logits.cuh"
#include "../stage/proj_add.cuh"
#include "../stage/quantize.cuh"
#include "by_block.cuh"

#define STERNA_ROW_KERNEL(stage, Params, Type, type) \
    KERNEL(stage##__##type, Params, LINEAR_THREADS) { stage<Type, 1>(p); }
#define STERNA_ROWS_KERNEL(stage, Params, Type, type) \
    KERNEL(stage##__##type##__rows, Params, LINEAR_THREADS) { stage<Type, LINEAR_ROWS>(p); }

#define STERNA_EXPERTS_KERNELS(Type, type)                                       \
    KERNEL(experts__##type, ExpertsParams, LINEAR_THREADS) { experts<Type>(p); } \
    KERNEL(experts__##type##__tiles, ExpertsParams, LINEAR_THREADS) { experts_tiles<Type>(p); }

#define STERNA_ROW_KERNELS(Type, type)                                    \
    STERNA_EXPERTS_KERNELS(Type, type)                                    \
    KERNEL(embed__##type, EmbedParams, EMBED_THREADS) { embed<Type>(p); } \
    STERNA_ROW_KERNEL(attn_in, AttnInParams, Type, type)                  \
    STERNA_ROW_KERNEL(proj_add, ProjAddParams, Type, type)                \
    STERNA_ROW_KERNEL(ffn_in, FfnInParams, Type, type)                    \
    STERNA_ROW_KERNEL(logits, LogitsParams, Type, type)

#define STERNA_KERNELS(Type, type)                          \
    STERNA_ROW_KERNELS(Type, type)                          \
    STERNA_ROWS_KERNEL(attn_in, AttnInParams, Type, type)   \
    STERNA_ROWS_KERNEL(proj_add, ProjAddParams, Type, type) \
    STERNA_ROWS_KERNEL(ffn_in, FfnInParams, Type, type)     \
    STERNA_ROWS_KERNEL(logits, LogitsParams, Type, type)

#define STERNA_MMA_KERNELS(Type, type)                                                     \
    KERNEL(attn_in__##type##__mma, AttnInParams, LINEAR_THREADS) { attn_in_mma<Type>(p); }    \
    KERNEL(proj_add__##type##__mma, ProjAddParams, LINEAR_THREADS) { proj_add_mma<Type>(p); } \
    KERNEL(ffn_in__##type##__mma, FfnInParams, LINEAR_THREADS) { ffn_in_mma<Type>(p); }       \
    KERNEL(logits__##type##__mma, LogitsParams, LINEAR_THREADS) { logits_mma<Type>(p); }

#define STERNA_CODES_KERNEL(stage, Params, Type, type)                                   \
    STERNA_ROW_KERNEL(stage, Params, ByBlock<Type>, type##__dp4a)                        \
    KERNEL(stage##__##type##__codes, Params, LINEAR_THREADS) { stage##_codes<Type>(p); } \
    KERNEL(stage##__##type##__few, Params, LINEAR_THREADS) { stage##_few<Type>(p); }

#define STERNA_CODES_KERNELS(Type, type)                                                                 \
    STERNA_MMA_KERNELS(Type, type)                                                                       \
    KERNEL(experts__##type##__dp4a, ExpertsParams, LINEAR_THREADS) { experts<ByBlock<Type>>(p); }        \
    STERNA_CODES_KERNEL(attn_in, AttnInParams, Type, type)                                               \
    STERNA_CODES_KERNEL(proj_add, ProjAddParams, Type, type)                                             \
    STERNA_CODES_KERNEL(ffn_in, FfnInParams, Type, type)                                                 \
    STERNA_CODES_KERNEL(logits, LogitsParams, Type, type)

#define STERNA_QUANTIZE_KERNEL(Type, type) \
    KERNEL(quantize__##type, QuantParams, LINEAR_THREADS) { quantize_rows<Type>(p); }
