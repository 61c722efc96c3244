/* Parameters of attention, and of the `append` kernels that run before it over quantised caches. params.h
 * includes this file after the structs that it needs. */
#ifndef STERNA_PARAMS_ATTEND_H
#define STERNA_PARAMS_ATTEND_H

struct AppendParams {
    struct StepTables step;
    struct CodedKvParams kv;
    /* [rows, 2, n_kv_heads, head_dim]; or null, to only rotate queries. */
    POINTER(const float) raw;
    /* [rows, n_kv_heads, group, head_dim] */
    POINTER(float) q;
    uint32_t group;
    uint32_t reserved;
};

struct AppendBlocksParams {
    struct StepTables step;
    struct BlockKvParams kv;
    /* As in AppendParams. */
    POINTER(const float) raw;
    POINTER(float) q;
    uint32_t group;
    uint32_t reserved;
};

/* Parameters of every attention kernel, apart from the cache. */
struct AttendCommon {
    /* [rows, n_kv_heads, group, head_dim] */
    POINTER(const float) q;
    POINTER(float) out;
    /* Partial results; the kernel's own parameters have their layout. */
    POINTER(float) partial;
    /* [rows or tiles of rows; n_kv_heads; head_tiles]: splits that have arrived; 0 between launches. */
    POINTER(uint32_t) arrived;
    /* [n_kv_heads, group]: attention sinks, one more logit per softmax without a position; or null. */
    POINTER(const float) sinks;
    /* [rows], if rows attend to later positions or see images whole. */
    POINTER(const struct StepText) texts;
    float scale;
    /* Query heads per KV head. */
    uint32_t group;
    /* Number of latest positions that a row attends to, its own included (all bits set: no limit); and number
     * of later positions, as far as the sequence has rows in the batch. */
    uint32_t window;
    uint32_t ahead;
    /* Soft cap of scores; 0 without one. */
    float soft_cap;
    /* True if rows of an image attend to all of it, and to nothing later. */
    uint32_t whole_images;
};

/* Attention row by row. Partial results are [rows, n_kv_heads, head_tiles] of up to `splits` splits, in the
 * layout of cuda/lib/parts.cuh; caches of codes and blocks have head_dim for the stride. The parameters of
 * the cache follow: cuda/lib/over_cache.cuh. */
struct AttendRowsParams {
    struct StepTables step;
    /* [2, n_kv_heads, head_dim] if the kernel itself does the work of `append`, in a step of one row over a
     * cache of codes; or null. Then the query heads of a KV head are one tile. */
    POINTER(const float) raw;
    struct AttendCommon common;
    /* Blocks per KV head that share its query heads. */
    uint32_t head_tiles;
    uint32_t splits;
};

/* Attention by tiles of rows. Partial results are [blocks, ATTEND_MMA_VECTORS or ATTEND_MMA_VECTORS_256, 2 +
 * head_dim]: largest score, sum of weights, weighted values. The parameters of the cache follow. */
struct AttendTilesParams {
    struct StepTables step;
    /* [counts.tiles], each of at most (vectors / heads) rows. */
    POINTER(const struct StepTile) tiles;
    struct AttendCommon common;
    /* Query heads per block, and blocks per KV head that share its query heads. */
    uint32_t heads;
    uint32_t head_tiles;
    /* Number of blocks that a step of few tiles is split into by positions. */
    uint32_t blocks;
    uint32_t reserved;
};

#endif
