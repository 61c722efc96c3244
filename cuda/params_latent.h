/* Parameters of multi-head latent attention. Kernels that need them include this file instead of params.h. */
#ifndef STERNA_PARAMS_LATENT_H
#define STERNA_PARAMS_LATENT_H

#include "params.h"

/* Most elements of a key, and of its latent vector. */
#define LATENT_MAX_DIM 576
#define LATENT_MAX_RANK 512

/* Attention: query heads per block, threads, shared memory, and positions in shared memory at a time of
 * caches of f16 and of f32. */
#define LATENT_HEADS 8
#define LATENT_THREADS 256
#define LATENT_SHARED_BYTES 56960
#define LATENT_POSITIONS_F16 32
#define LATENT_POSITIONS_F32 16

#define LATENT_IN_THREADS 128

/* After the products of `latent_in`: RoPE of queries and keys, the norm of latent vectors, the KV write. */
struct LatentInParams {
    struct StepTables step;
    struct RopeParams rope;
    struct NormParams norm;
    struct KvParams kv;
    /* [rows, head_dim]: a latent vector, then the elements that are rotated. */
    POINTER(const float) keys;
    /* [rows, n_heads, part]: `plain` elements of a head, then those that are rotated. */
    POINTER(const float) parts;
    /* [rows, n_heads, head_dim]: the elements from `rank` on are written. */
    POINTER(float) q;
    uint32_t n_heads;
    uint32_t rank;
    uint32_t part;
    uint32_t plain;
};

/* out[r][h] = W[h] x[r][h] */
struct HeadProjParams {
    struct StepTables step;
    /* [rows, n_heads], `x_pitch` elements apart, of which the first `in.cols` are multiplied. */
    struct InputParams in;
    /* [n_heads] */
    POINTER(const struct LinearParams) table;
    /* [rows, n_heads], `out_pitch` elements apart, of which the first `outputs` are written. */
    POINTER(float) out;
    uint32_t n_heads;
    uint32_t x_pitch;
    uint32_t out_pitch;
    uint32_t outputs;
    uint32_t chunks;
    uint32_t reserved;
};

#endif
