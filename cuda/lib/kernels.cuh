// The kernels of one weight type. STERNA_KERNELS(F16, f16) makes embed__f16, attn_in__f16 for single rows,
// attn_in__f16__rows for several, and so on.
#pragma once

#include "../stage/attn_in.cuh"
#include "../stage/embed.cuh"
#include "../stage/ffn_in.cuh"
#include "../stage/logits.cuh"
#include "../stage/proj_add.cuh"

#define STERNA_LINEAR_KERNELS(stage, Params, Type, type)                                  \
    KERNEL(stage##__##type, Params, LINEAR_THREADS) { stage<Type, 1>(p); }                \
    KERNEL(stage##__##type##__rows, Params, LINEAR_THREADS) { stage<Type, LINEAR_ROWS>(p); }

#define STERNA_KERNELS(Type, type)                                        \
    KERNEL(embed__##type, EmbedParams, EMBED_THREADS) { embed<Type>(p); } \
    STERNA_LINEAR_KERNELS(attn_in, AttnInParams, Type, type)              \
    STERNA_LINEAR_KERNELS(proj_add, ProjAddParams, Type, type)            \
    STERNA_LINEAR_KERNELS(ffn_in, FfnInParams, Type, type)                \
    STERNA_LINEAR_KERNELS(logits, LogitsParams, Type, type)
