/* Parameters of attention and of what goes before it over caches of codes: a part of params.h, which includes
 * it behind the structs that these are made of. */
#ifndef STERNA_PARAMS_ATTEND_H
#define STERNA_PARAMS_ATTEND_H

struct AppendParams {
    struct StepTables step;
    struct CodedKvParams kv;
    /* [rows, 2, n_kv_heads, head_dim] */
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

/* Parameters of every attention, besides the cache that it reads. */
struct AttendCommon {
    /* [rows, n_kv_heads, group, head_dim] */
    POINTER(const float) q;
    POINTER(float) out;
    /* Parts, as the kernel's own parameters say. */
    POINTER(float) partial;
    /* [rows, or tiles of these; n_kv_heads; head_tiles]: splits that have come; 0 between two launches. */
    POINTER(uint32_t) arrived;
    /* [n_kv_heads, group]: logits of no position, of which each softmax has one more term; or null. */
    POINTER(const float) sinks;
    /* [rows], where rows see ahead. */
    POINTER(const struct StepText) texts;
    float scale;
    /* Query heads of one KV head. */
    uint32_t group;
    /* Positions that a row sees up to its own, the last ones; all bits set where it sees every one. And how
     * many it sees behind its own, as far as the sequence has rows in the step. */
    uint32_t window;
    uint32_t ahead;
};

/* Rows one by one. Parts are [rows, n_kv_heads, head_tiles], each as cuda/lib/parts.cuh says, of up to
 * `splits` splits. */
struct AttendParams {
    struct StepTables step;
    struct KvParams kv;
    struct AttendCommon common;
    /* Blocks that the query heads of one KV head take. */
    uint32_t head_tiles;
    uint32_t splits;
};

/* As AttendParams, with head_dim for the stride. */
struct AttendCodesParams {
    struct StepTables step;
    struct CodedKvParams kv;
    /* [2, n_kv_heads, head_dim], where the kernel itself does for a step of one row what `append` does for
     * others; or null. Then a KV head's query heads are one tile. */
    POINTER(const float) raw;
    struct AttendCommon common;
    uint32_t head_tiles;
    uint32_t splits;
};

/* As AttendCodesParams. */
struct AttendBlocksParams {
    struct StepTables step;
    struct BlockKvParams kv;
    struct AttendCommon common;
    uint32_t head_tiles;
    uint32_t splits;
};

/* Tiles of rows. Parts are [blocks, ATTEND_MMA_VECTORS or ATTEND_MMA_VECTORS_256, 2 + head_dim]: largest
 * score, sum of weights, weighted values. */
struct AttendMmaParams {
    struct StepTables step;
    struct KvParams kv;
    /* [counts.tiles], of at most so many vectors / heads rows. */
    POINTER(const struct StepTile) tiles;
    struct AttendCommon common;
    /* How many query heads a block takes, and blocks that those of one KV head take. */
    uint32_t heads;
    uint32_t head_tiles;
    /* How many blocks a step of few tiles is to have, by splits of its positions. */
    uint32_t blocks;
    uint32_t reserved;
};

/* As AttendMmaParams. */
struct AttendCodesMmaParams {
    struct StepTables step;
    struct CodedKvParams kv;
    POINTER(const struct StepTile) tiles;
    struct AttendCommon common;
    uint32_t heads;
    uint32_t head_tiles;
    uint32_t blocks;
    uint32_t reserved;
};

/* As AttendMmaParams. */
struct AttendBlocksMmaParams {
    struct StepTables step;
    struct BlockKvParams kv;
    POINTER(const struct StepTile) tiles;
    struct AttendCommon common;
    uint32_t heads;
    uint32_t head_tiles;
    uint32_t blocks;
    uint32_t reserved;
};

#endif
