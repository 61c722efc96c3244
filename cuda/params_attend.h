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

struct AttendParams {
    struct StepTables step;
    struct KvParams kv;
    /* [rows, n_kv_heads, group, head_dim] */
    POINTER(const float) q;
    POINTER(float) out;
    /* [rows, n_kv_heads, tiles], each as cuda/lib/parts.cuh says, of up to `splits` splits. */
    POINTER(float) partial;
    /* [rows, n_kv_heads, tiles]: splits that have come; 0 between two launches. */
    POINTER(uint32_t) arrived;
    /* [n_kv_heads, group]: logits of no position, of which each softmax has one more term; or null. */
    POINTER(const float) sinks;
    float scale;
    /* Query heads of one KV head, and blocks that they take. */
    uint32_t group;
    uint32_t tiles;
    uint32_t splits;
    /* Positions that a row sees, the last ones up to its own; all bits set where it sees every one. */
    uint32_t window;
    uint32_t reserved;
};

struct AttendMmaParams {
    struct StepTables step;
    struct KvParams kv;
    /* [counts.tiles], of at most ATTEND_MMA_ROWS / heads rows. */
    POINTER(const struct StepTile) tiles;
    /* [rows, n_kv_heads, group, head_dim] */
    POINTER(const float) q;
    POINTER(float) out;
    /* [blocks, ATTEND_MMA_ROWS, 2 + head_dim]: largest score, sum of weights, weighted values. */
    POINTER(float) partial;
    /* [counts.tiles, n_kv_heads, head_tiles]: splits that have come; 0 between two launches. */
    POINTER(uint32_t) arrived;
    /* As in AttendParams. */
    POINTER(const float) sinks;
    float scale;
    /* Query heads of one KV head, how many of them a block takes, and blocks that they take. */
    uint32_t group;
    uint32_t heads;
    uint32_t head_tiles;
    /* How many blocks a step of few tiles is to have, by splits of its positions. */
    uint32_t blocks;
    /* As in AttendParams. */
    uint32_t window;
};

struct AttendCodesParams {
    struct StepTables step;
    struct CodedKvParams kv;
    /* As in AttendParams, with head_dim for the stride. */
    POINTER(const float) q;
    POINTER(float) out;
    POINTER(float) partial;
    POINTER(uint32_t) arrived;
    /* [2, n_kv_heads, head_dim], where the kernel itself does for a step of one row what `append` does for
     * others; or null. Then a KV head's query heads are one tile. */
    POINTER(const float) raw;
    POINTER(const float) sinks;
    float scale;
    uint32_t group;
    uint32_t tiles;
    uint32_t splits;
    uint32_t window;
    uint32_t reserved;
};

struct AttendCodesMmaParams {
    struct StepTables step;
    struct CodedKvParams kv;
    /* As in AttendMmaParams. */
    POINTER(const struct StepTile) tiles;
    POINTER(const float) q;
    POINTER(float) out;
    POINTER(float) partial;
    POINTER(uint32_t) arrived;
    POINTER(const float) sinks;
    float scale;
    uint32_t group;
    uint32_t heads;
    uint32_t head_tiles;
    uint32_t blocks;
    /* As in AttendParams. */
    uint32_t window;
};

struct AttendBlocksParams {
    struct StepTables step;
    struct BlockKvParams kv;
    /* As in AttendCodesParams. */
    POINTER(const float) q;
    POINTER(float) out;
    POINTER(float) partial;
    POINTER(uint32_t) arrived;
    POINTER(const float) sinks;
    float scale;
    uint32_t group;
    uint32_t tiles;
    uint32_t splits;
    uint32_t window;
    uint32_t reserved;
};

#endif
