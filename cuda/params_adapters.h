/* Parameters of LoRA adapters, control vectors, soft caps and bounds. Kernels that need them include this
 * file instead of params.h. */
#ifndef STERNA_PARAMS_ADAPTERS_H
#define STERNA_PARAMS_ADAPTERS_H

#include "params.h"

/* Threads of a block; most rows of a tile; rows of a first matrix per block; and most layers of a launch. */
#define LORA_THREADS 256
#define LORA_ROWS 8
#define LORA_RANKS 4
#define LORA_LAYERS 4

/* Values of LinearParams::kind in a LoraPair. */
#define LORA_F32 0
#define LORA_F16 1
#define LORA_BF16 2
#define LORA_Q8_0 3

#define ADD_VECTOR_THREADS 256
#define SOFT_CAP_THREADS 256

/* The pair of an adapter for a layer, or for the token table. */
struct LoraPair {
    /* [rank, inputs], or [n_vocab, rank] for the token table. `data` is null if the adapter has no pair here;
     * `factor` is that of the pair. */
    struct LinearParams a;
    /* [outputs, rank] */
    struct LinearParams b;
    uint32_t rank;
    uint32_t reserved;
};

/* Products of rows with the pairs of their adapters, for up to LORA_LAYERS layers of one input. The tables of
 * the step are those of src/backend/device/adapters.rs. */
struct LoraParams {
    struct StepTables step;
    /* [seqs, 1 + 2 n_adapters]: the number of a sequence's adapters, then id and scale (bits) of each. */
    POINTER(const uint32_t) seqs;
    /* Number of tiles, and [tiles, 1 + LORA_ROWS]: the number of a tile's rows, and the rows. */
    POINTER(const uint32_t) n_tiles;
    POINTER(const uint32_t) tiles;
    /* [rows, n_used]: the experts of each row, whose slots are the rows of this launch; or null. */
    POINTER(const struct ExpertChoice) choices;
    /* [layers of the stage, n_adapters] */
    POINTER(const struct LoraPair) pairs;
    /* [seqs]: last sampled token of each. */
    POINTER(const uint32_t) picked;
    /* [rows, cols] */
    POINTER(const float) x;
    /* [rows or places, layers of the launch, n_adapters, rank]: products with first matrices, scaled. */
    POINTER(float) first;
    /* [rows or places, outputs] per layer, to which the products are added. */
    POINTER(float) out[4];
    /* Per layer, the index in `pairs` of its first pair, or of the first expert's. */
    uint32_t pairs_at[4];
    uint32_t outputs[4];
    /* Inputs of the layers. */
    uint32_t cols;
    uint32_t n_adapters;
    /* Floats of a product in `first`: a multiple of LORA_RANKS. */
    uint32_t rank;
    uint32_t n_layers;
    /* Experts per row, and pairs from one expert to the next. */
    uint32_t n_used;
    uint32_t of_expert;
    /* True if rows of `x` are batch rows outputs[r], and those of `out` are r. */
    uint32_t of_outputs;
    /* True if the inputs of slots are batch rows. */
    uint32_t of_step;
};

/* Normalises the rows that use adapters, which are in tiles as in LoraParams. */
struct LoraNormParams {
    struct StepTables step;
    struct NormParams norm;
    POINTER(const uint32_t) n_tiles;
    POINTER(const uint32_t) tiles;
    /* [rows, cols] each, different buffers. */
    POINTER(const float) x;
    POINTER(float) to;
    uint32_t cols;
    /* True if the rows of tiles are those that request logits. */
    uint32_t of_outputs;
};

/* x[r] += v */
struct AddVectorParams {
    struct StepTables step;
    /* [cols] */
    POINTER(const float) v;
    /* [rows, cols] */
    POINTER(float) x;
    uint32_t cols;
    uint32_t reserved;
};

/* logits[o] = cap tanh(logits[o] / cap) */
struct SoftCapParams {
    struct StepTables step;
    /* [outputs, cols] */
    POINTER(float) logits;
    uint32_t cols;
    float cap;
};

/* to[r] = min(max(norm(x[r]), lower), upper) */
struct ClampParams {
    struct StepTables step;
    struct NormParams norm;
    /* [rows, cols] each, which may be the same buffer. */
    POINTER(const float) x;
    POINTER(float) to;
    uint32_t cols;
    float lower;
    float upper;
    uint32_t reserved;
};

#endif
