/* Parameters of every kernel. Compiled by nvcc and by the host compiler; the build script translates this
 * file to Rust (params.rs). No struct has padding. */
#ifndef STERNA_PARAMS_H
#define STERNA_PARAMS_H

#include <stdint.h>

/* A device address. */
#ifdef __cplusplus
#define POINTER(T) T*
#else
#define POINTER(T) uint64_t
#endif

/* Quantisation of a linear layer's input to int8: not at all; one scale per row; or one scale per
 * QUANT_COLS columns (a block). A block whose largest magnitude is below 1e-30 (the float with bits
 * QUANT_ZERO_BITS) becomes zeros. */
#define QUANT_NONE 0
#define QUANT_ROWS 1
#define QUANT_BLOCKS 2
#define QUANT_COLS 32
#define QUANT_ZERO_BITS 0x0da24260

/* Values of NormParams::kind. */
#define NORM_NONE 0
#define NORM_RMS 1
#define NORM_LAYER 2

#define ACT_RELU2 0
#define ACT_SILU 1
#define ACT_GELU_TANH 2
/* Changes the gate and the operand it is multiplied with. */
#define ACT_CLAMPED_SWIGLU 3

/* No activation; for CombineParams and ExpertsParams. */
#define ACT_NONE 4

/* Only for CombineParams: multiplies by 1 / (1 + exp(-gate)), by ln(1 + exp(gate)), or by the gate itself. */
#define ACT_GATE 5
#define ACT_SOFTPLUS 6
#define ACT_TIMES 8

/* Only for CombineParams: GELU with erf. */
#define ACT_GELU 7
/* Likewise: xIELU with the numbers of CombineParams. */
#define ACT_XIELU 9

/* StepRow::output of a row that needs no logits. */
#define NO_OUTPUT 0xffffffff

/* StepRow::token of a row whose token is the one last sampled for its sequence. */
#define TOKEN_PICKED 0xffffffff

/* StepSampling::mailbox of a token that no later step needs. */
#define NO_MAILBOX 0xffffffff

/* Mailboxes per sequence slot: words of host memory that receive sampled tokens alternately, so that the host
 * can read one while the next is written. */
#define MAILBOXES 2

/* Positions per KV page. */
#define PAGE_POSITIONS 64

/* Positions of a row from which blocks share them (split K), and the smallest number of positions in a
 * split. A merge costs two round trips to memory, as much as a hundred positions. */
#define ATTEND_WHOLE 256
#define ATTEND_LEAST 192

/* Most partial results merged per row: splits, or the warps or lane groups of a block. */
#define MAX_PARTS 112

/* Query heads per block of `attend`. */
#define ATTEND_HEADS 4

/* `attend` on tensor cores: most query heads per block; resident blocks per multiprocessor that registers
 * allow, for f16 caches and for quantised ones; then, by largest head_dim: query vectors (rows x heads) per
 * block, threads per block, and shared memory by kind of cache. */
#define ATTEND_MMA_HEADS 16
#define ATTEND_MMA_RESIDENT 2
#define ATTEND_MMA_CODES_RESIDENT 1
#define ATTEND_MMA_VECTORS 64
#define ATTEND_MMA_VECTORS_256 48
#define ATTEND_MMA_THREADS_64 128
#define ATTEND_MMA_THREADS_128 256
#define ATTEND_MMA_THREADS_256 192
#define ATTEND_MMA_SHARED_BYTES_64 28096
#define ATTEND_MMA_SHARED_BYTES_128 69040
#define ATTEND_MMA_SHARED_BYTES_256 74032
#define ATTEND_MMA_CODES_SHARED_BYTES_64 36032
#define ATTEND_MMA_CODES_SHARED_BYTES_128 83120
#define ATTEND_MMA_CODES_SHARED_BYTES_256 90608
#define ATTEND_MMA_BLOCKS_SHARED_BYTES_64 34880
#define ATTEND_MMA_BLOCKS_SHARED_BYTES_128 81456
#define ATTEND_MMA_BLOCKS_SHARED_BYTES_256 91248

/* Query heads per block of `attend` over codes on tensor cores, and its threads for a head_dim of 128 and of
 * 256; with 64, it has ATTEND_WIDE_THREADS. */
#define ATTEND_ROW_HEADS 8
#define ATTEND_ROW_THREADS_128 384
#define ATTEND_ROW_THREADS_256 256

/* Threads per block, by kernel. */
#define LINEAR_THREADS 256
#define EMBED_THREADS 256
#define ATTEND_THREADS 128
#define ATTEND_WIDE_THREADS 256
/* Of those for heads of 257 to 512 elements. */
#define ATTEND_THREADS_512 128
#define APPEND_THREADS 128
/* Of `append` over trellis codes, which it searches for. */
#define APPEND_TRELLIS_THREADS 256
#define SAMPLE_THREADS 256
#define HEADS_THREADS 128
#define COMBINE_THREADS 256
#define STAMP_THREADS 32
#define ROUTE_THREADS 256
#define MIX_THREADS 256

/* Most experts of a router, most experts per row, and most groups of experts. */
#define EXPERTS_MAX 512
#define EXPERTS_MAX_USED 32
#define GROUPS_MAX 32
/* Functions of a router's logits: softmax over the chosen ones, with nothing else; over all; sigmoid. */
#define ROUTING_CHOSEN 0
#define ROUTING_SOFTMAX 1
#define ROUTING_SIGMOID 2

/* Most candidates that `sample` draws from, at most its number of threads; and logits per block. */
#define SAMPLE_MAX 256
#define SAMPLE_STRETCH 4096

/* Most tokens per row whose logits `sample` changes, at most its number of threads. */
#define SAMPLE_CHANGES 256

/* Largest and smallest head_dim of a cache of codes. */
#define CODES_MAX_DIM 256
#define CODES_MIN_DIM 32

/* Number of supported head_dims: powers of two. */
#define CODES_DIMS 4

/* Of keys in trellis codes, codes of the scale 1 of each group. */
#define TRELLIS_ONE_FIRST 91
#define TRELLIS_ONE_SECOND 151

/* Elements on each side of the seam of a vector of trellis codes, at most. */
#define TRELLIS_SEAM 16

/* Elements of a piece: the unit in which a vector of codes is stored. */
#define CODES_PIECE 16

/* Values of BlockKvParams::forms, and elements per block. */
#define BLOCKS_HALVES 0
#define BLOCKS_Q8_0 1
#define BLOCKS_Q4_0 2
#define BLOCK_ELEMS 32

#define APPEND_BLOCKS_SHARED_BYTES 1280

/* Table entry where a page has no exact (f16) copy. */
#define NO_PAGE 0xffffffff

/* Rows that the convolution of `delta` reads. */
#define DELTA_TAPS 4

/* Threads of the delta net kernels for prefill and of the row-by-row (scan) kernel; rows that the scan kernel
 * loads into shared memory at a time, and columns of a head per warp. */
#define DELTA_THREADS 128
#define DELTA_SCAN_THREADS 128
#define DELTA_ROWS 8
#define DELTA_COLS 8

/* Threads of the kernels of a convolution, rows per thread in a prompt, and the most rows that it reads. */
#define CONV_THREADS 128
#define CONV_ROWS 8
#define CONV_MAX_TAPS 8

/* Mamba: most threads of the row-by-row (scan) kernel, elements of a key per thread, rows in shared memory at
 * a time, longest heads and keys; threads of the kernel of the gate. */
#define MAMBA_THREADS 512
#define MAMBA_PART 32
#define MAMBA_ROWS 4
#define MAMBA_MAX_DIM 128
#define MAMBA_MAX_KEYS 256
#define MAMBA_GATE_THREADS 256

/* State slot of a sequence that has no state yet. */
#define NO_STATE 0xffffffff

#define SAMPLE_SHARED_BYTES 35088

/* Most columns for which a single-row linear kernel prefetches the norm weights into shared memory: 4 bytes
 * each after the header, later overwritten by the activations. */
#define NORM_SHARED_COLS 7168

/* The same for the kernel that quantises rows by block, which holds that many columns in registers. */
#define QUANT_BLOCKS_COLS 14336

/* Columns per block of `hadamard`: with one quad (4 columns) per thread, and at most. */
#define HADAMARD_COLS 1024
#define HADAMARD_MAX_COLS 4096

/* Bytes before the activations in a linear kernel's shared memory, and rows at a time of the kernels for
 * several rows and of those on tensor cores. */
#define LINEAR_HEADER_BYTES 768
#define LINEAR_ROWS 8
#define MMA_ROWS 32

/* Activations that are loaded into shared memory in parts: a part is a multiple of PART_COLS columns, and a
 * warp has at most PART_UNITS sets of weight rows, whose partial sums are stored after the part. */
#define PART_COLS 256
#define PART_UNITS 4

/* Integer linear kernels on tensor cores: columns in shared memory per stage, bytes per row there, pipeline
 * stages, and total shared memory. */
#define MMA_INTS_COLS 256
#define MMA_INTS_PITCH 320
#define MMA_INTS_STAGES 4
#define MMA_INTS_SHARED_BYTES 44800

/* Shared memory of a linear kernel that multiplies f16 on tensor cores. */
#define MMA_HALVES_SHARED_BYTES 38400

/* Linear kernels on tensor cores for inputs quantised by block: batch rows and columns in shared memory per
 * stage, pipeline stages, and total shared memory. */
#define MMA_CODES_ROWS 64
#define MMA_CODES_COLS 128
#define MMA_CODES_STAGES 3
#define MMA_CODES_SHARED_BYTES 31488

/* The same for small batches: most batch rows, floats from one row of the sums to the next, and shared
 * memory after the header for 8 batch rows. */
#define MMA_FEW_ROWS 64
#define MMA_FEW_PITCH 20
#define MMA_FEW_TILE_BYTES 5120

/* One row of a batch. */
struct StepRow {
    /* Token id, or TOKEN_PICKED. */
    uint32_t token;
    uint32_t pos;
    uint32_t seq;
    /* Row of the logits buffer that this row writes, or NO_OUTPUT. */
    uint32_t output;
};

/* Further fields per row, for programs whose rows attend to later positions or have token types, and for
 * those with images. */
struct StepText {
    /* Position of the sequence's last row in the batch. */
    uint32_t end;
    uint32_t token_type;
    /* Position after the last row of the row's image; 0 if it is of none. */
    uint32_t image_end;
    /* Rotary position on each axis: time, row and column. */
    uint32_t place[3];
};

/* Lengths of the step's tables. */
struct StepCounts {
    uint32_t rows;
    uint32_t outputs;
    uint32_t sampled;
    /* Entries of StepTile; 0 if no kernel of the step uses them. */
    uint32_t tiles;
};

/* Neighbouring rows of a batch at consecutive positions of one sequence. */
struct StepTile {
    uint32_t first;
    uint32_t rows;
};

/* Consecutive rows of one sequence, and the slots of its recurrent states: `from` is read (NO_STATE for a new
 * sequence), `to` is written after the last row. Unused if `rows` is 0. The states after `n_kept` earlier
 * rows, the first of them row `first_kept` of the run, are written as well: the slots of all rows of the step
 * are in the words from `kept` on, counted from the first StepRun. */
struct StepRun {
    uint32_t first;
    uint32_t rows;
    uint32_t from;
    uint32_t to;
    uint32_t kept;
    uint32_t first_kept;
    uint32_t n_kept;
    uint32_t reserved;
};

/* Sampling of a token from one row of logits. */
struct StepSampling {
    float temperature;
    float top_p;
    float min_p;
    /* Number of largest logits to draw from; 1 is greedy. At most SAMPLE_MAX and n_vocab. */
    uint32_t top_k;
    uint64_t seed;
    uint64_t counter;
    /* MAILBOXES * (slot of the row's sequence) + the word to write next; or NO_MAILBOX. */
    uint32_t mailbox;
    /* Number of TokenChange entries. */
    uint32_t changes;
    /* Penalties for tokens that occurred, as in program::Sampling; 1, 0 and 0 have no effect. */
    float repeat_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint32_t reserved;
};

/* A change of a token's logit before sampling. */
struct TokenChange {
    uint32_t token;
    /* Number of times the token occurred. */
    uint32_t count;
    /* Added to the logit. */
    float bias;
    uint32_t reserved;
};

/* Beginning of the next stage's weights: the part worth prefetching into the L2 cache. */
struct NextWeights {
    POINTER(const uint8_t) data;
    uint64_t bytes;
};

/* Tables that change from step to step. Their addresses never change. */
struct StepTables {
    POINTER(const struct StepCounts) counts;
    POINTER(const struct StepRow) rows;
    /* [outputs]: batch row of each row of logits. */
    POINTER(const uint32_t) outputs;
    /* [seqs, pages_stride] */
    POINTER(const uint32_t) pages;
    /* [seqs, pages_stride]: exact (f16) pages of windowed codecs, NO_PAGE where only codes are left; or
     * null. */
    POINTER(const uint32_t) exact;
    uint32_t pages_stride;
    uint32_t reserved;
    struct NextWeights next;
};

struct NormParams {
    /* [cols] each; bias may be null. */
    POINTER(const float) weight;
    POINTER(const float) bias;
    float eps;
    uint32_t kind;
};

/* y = factor * tensor_scale * (W x) + bias */
struct LinearParams {
    /* Layout: see the type's file in cuda/types. */
    POINTER(const uint8_t) data;
    /* [rows], or null. */
    POINTER(const float) bias;
    float tensor_scale;
    float factor;
    uint32_t rows;
    /* Chunks per row. */
    uint32_t chunks;
    /* Tells types apart that share kernels: T::Kind in cuda/types. */
    uint32_t kind;
    uint32_t reserved;
};

/* Quantisation of a row: q = round(x * scale), and the sum of q. */
struct RowQuant {
    float scale;
    int32_t sum;
};

/* Dequantisation of QUANT_COLS columns of int8: x = q * scale; and their sum, scaled. */
struct BlockQuant {
    float scale;
    float sum;
};

/* Quantised rows, written by `round` for products on tensor cores, and the workspace in which blocks merge
 * the sums of a tile whose columns they share. */
struct RoundedParams {
    /* [rows, row_bytes] in the shared memory layout of cuda/lib/input.cuh, and one RowQuant per row; both
     * padded to whole tiles. Quantised by block: the layout of cuda/lib/linear_codes.cuh, and [blocks of
     * columns, rows], the rows in whole tiles; for weights in octets that of cuda/stage/quantize_octets.cu.
     * `blocks` are after `rows`. */
    POINTER(uint8_t) rows;
    POINTER(struct RowQuant) quants;
    POINTER(struct BlockQuant) blocks;
    /* [blocks, 2] partial sums of one tile each; and [tiles] arrived blocks, 0 between launches. */
    POINTER(int32_t) sums;
    POINTER(uint32_t) arrived;
};

/* Input of a linear layer: rows of a buffer, normalised and quantised by the kernel or beforehand. */
struct InputParams {
    /* [rows, cols] */
    POINTER(const float) x;
    struct NormParams norm;
    struct RoundedParams rounded;
    uint32_t cols;
    /* QUANT_NONE, QUANT_ROWS or QUANT_BLOCKS. */
    uint32_t rounding;
    /* True if row i is batch row outputs[i]. */
    uint32_t of_outputs;
    /* log2 of the lanes per weight row: 3, 4 or 5; 1 on tensor cores, where a set has 16 rows. */
    uint32_t lanes_log2;
    /* Bytes from one row of int8 to the next. */
    uint32_t row_bytes;
    /* Chunks of a row in shared memory at a time, for float activations: all of them, or a part of a multiple
     * of PART_COLS columns. */
    uint32_t part_chunks;
};

/* KV cache of one layer. Per KV head, a page holds PAGE_POSITIONS keys of `stride` elements, then as many
 * values: [2, n_kv_heads, PAGE_POSITIONS, stride]. */
struct KvParams {
    POINTER(uint8_t) pages;
    uint64_t page_bytes;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    /* head_dim rounded up to a multiple of 8; the padding is 0. */
    uint32_t stride;
    /* 2 for f16, 4 for f32. */
    uint32_t elem_bytes;
};

/* Encoding of rotated vectors. Part of the parameters, not of a buffer, so that kernels read it from
 * constant memory. */
struct CodesParams {
    /* Signs of the rotation, one bit per element, 1 for -1; and its factor, 1 / sqrt(head_dim). */
    uint32_t signs[8];
    float shrink;
    /* Step size of `table`. */
    float unit;
    /* For unit vectors: borders between magnitudes in rising order, the first 0, and the magnitudes. */
    float borders[8];
    float magnitudes[8];
    /* Dequantised codes as signed bytes: all 8 codes of 3 bits, or the upper 8 of 16 codes of 4 bits. */
    uint32_t table[2];
    /* The same as f16, without the division by `unit`: low bytes, then high bytes. */
    uint32_t halves[4];
};

/* Encoding of keys in 2-bit codes and signs, in addition to CodesParams: in constant memory, one for each
 * head_dim from CODES_MIN_DIM on. */
struct SignsParams {
    /* Signs of the projection of residuals, as in CodesParams. */
    uint32_t signs[8];
    /* Value of a sign. */
    float factor;
    /* 2-bit codebook, as in CodesParams; the first word of `table` has all 4 codes. */
    float unit;
    float borders[2];
    float magnitudes[2];
    uint32_t table[2];
};

/* Encoding of one group of the elements of keys in two groups. The codebook is as in CodesParams, for vectors
 * of head_dim / 2 elements; borders that it does not have are infinite. `table` has the positive magnitudes,
 * as for 4-bit codes. */
struct GroupParams {
    float borders[8];
    float magnitudes[8];
    uint32_t table[2];
    /* Codes of positive elements: half of all. */
    uint32_t half;
    /* Code of the scale `unit` of SplitParams. */
    float one;
    /* Logarithm to base 2 of the scale that code 0 would have, times the step size of `table`. */
    float bias;
};

/* Encoding of keys in two groups (ggml-types/src/turboquant/split.rs): in constant memory, one for each
 * head_dim from CODES_MIN_DIM on. */
struct SplitParams {
    struct GroupParams groups[2];
    /* Factor of the rotation of a group, 1 / sqrt(head_dim / 2). */
    float shrink;
    /* The typical scale, sqrt(head_dim / 2). */
    float unit;
};

/* Place of a vector in the basis of its KV head (ggml-types/src/turboquant/basis.rs): the element there, and
 * its factor in keys and in queries, with the sign of the rotation. */
struct KeyPlace {
    uint32_t elem;
    float of_key;
    float of_query;
};

/* Values of trellis codes (ggml-types/src/turboquant/trellis.rs), two at a time: those of two neighbouring
 * elements, by the codes that they follow from, the oldest in the low bits. In steps of 1 / 32. */
struct TrellisTables {
    /* Of 4-bit codes, by three codes, and of 2-bit codes, by four: pairs of int8, two pairs in a word. */
    uint32_t four[2048];
    uint32_t two[128];
    /* Of 3-bit codes, by three: pairs of f16, not in steps. */
    uint32_t three[512];
};

/* What caches of trellis codes have in common, in global memory. */
struct TrellisParams {
    struct TrellisTables tables;
    /* Factor of the rotation of a group of keys, 1 / sqrt(head_dim / 2), for each head_dim from CODES_MIN_DIM
     * on. */
    float shrink[4];
};

/* KV cache of one layer, as codes. */
struct CodedKvParams {
    struct CodesParams codes;
    /* [pages, 2, n_kv_heads]: for keys the page's mean, then PAGE_POSITIONS f16 scales, one or two per
     * vector (keys in two groups have two of 8 bits), then PAGE_POSITIONS vectors of codes
     * (cuda/lib/codes.cuh). */
    POINTER(uint8_t) pages;
    /* [exact pages, 2, n_kv_heads, PAGE_POSITIONS, head_dim] of f16. */
    POINTER(uint16_t) exact;
    /* Counts vectors with elements that were clamped. */
    POINTER(uint64_t) clamped;
    /* [n_kv_heads, head_dim], for keys in two groups; or null. */
    POINTER(const struct KeyPlace) bases;
    /* Of trellis codes; or null. */
    POINTER(const struct TrellisParams) trellis;
    uint64_t page_bytes;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    /* Pages read from exact copies: the first pages of a sequence, and the newest full ones. */
    uint32_t sink_pages;
    uint32_t newest_pages;
};

/* KV cache of one layer, in blocks of BLOCK_ELEMS elements under one scale; keys or values may be f16
 * instead. Blocks hold rotated vectors: signs and factor of the rotation as in CodesParams. */
struct BlockKvParams {
    uint32_t signs[8];
    float shrink;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    /* Forms of keys and of values. */
    uint32_t forms[2];
    uint32_t reserved;
    /* Layout: see cuda/lib/blocks.cuh. */
    POINTER(uint8_t) pages;
    /* Counts vectors with elements that were clamped. */
    POINTER(uint64_t) clamped;
    uint64_t page_bytes;
};

struct RopeParams {
    /* [positions, 2, pairs]: cosines, then sines, multiplied by the attention magnitude factor. */
    POINTER(const float) cos_sin;
    /* 0 without RoPE. */
    uint32_t pairs;
    /* True if pairs are adjacent elements (GPT-J); false if element i is paired with i + pairs (NeoX). */
    uint32_t adjacent;
};

struct EmbedParams {
    struct StepTables step;
    struct LinearParams table;
    /* [n_ctx, cols] and [n_types, cols] of f32; `data` is null if the model has none. */
    struct LinearParams positions;
    struct LinearParams types;
    /* [rows], if there are token types. */
    POINTER(const struct StepText) texts;
    /* [seqs]: last sampled token of each. */
    POINTER(const uint32_t) picked;
    /* [rows, cols] */
    POINTER(float) x;
    uint32_t cols;
    /* Factor on a token's embedding. */
    float scale;
    /* Rows of the table per token, and the row among them. */
    uint32_t stride;
    uint32_t first;
};

struct AttnInParams {
    struct StepTables step;
    struct InputParams in;
    struct LinearParams wq;
    struct LinearParams wk;
    struct LinearParams wv;
    struct RopeParams rope;
    struct KvParams kv;
    /* [rows, wq.rows] */
    POINTER(float) q;
    /* [rows, 2, n_kv_heads, head_dim]: keys and values go here for `append`, not to the cache; or null. */
    POINTER(float) raw;
};

struct HeadsParams {
    struct StepTables step;
    struct RopeParams rope;
    /* Norms over each head; their kind may be NORM_NONE. */
    struct NormParams q_norm;
    struct NormParams k_norm;
    struct NormParams v_norm;
    struct KvParams kv;
    /* [rows, n_heads, head_dim]: output queries. */
    POINTER(float) q;
    /* Input queries: [rows, n_heads, head_dim], which may be `q`; or, with a gate, [rows, n_heads, 2,
     * head_dim]: per head the query, then its part of the gate. The gate is copied to `gate`, which is null
     * without one. */
    POINTER(const float) queries;
    POINTER(float) gate;
    /* [n_kv_heads, head_dim] each, in rows `pitch` elements apart; both null if only queries are computed. */
    POINTER(const float) keys;
    POINTER(const float) values;
    /* As in AttnInParams. */
    POINTER(float) raw;
    /* [rope.pairs]: axis of each pair, and [rows]: the places; both null if positions have a single axis. */
    POINTER(const float) axes;
    POINTER(const struct StepText) texts;
    uint32_t n_heads;
    uint32_t pitch;
    /* Queries are multiplied by 1 + q_factor ln(1 + pos / q_period), unless q_period is 0. */
    float q_factor;
    uint32_t q_period;
    /* True if the norms of queries and keys are applied after RoPE: RMS norms. */
    uint32_t norm_after;
    uint32_t reserved;
};

#include "params_attend.h"

/* Batch rows that are normalised and quantised once, for products on tensor cores. */
struct QuantParams {
    struct StepTables step;
    struct InputParams in;
    /* Chunks per row. */
    uint32_t chunks;
    uint32_t reserved;
};

struct ProjAddParams {
    struct StepTables step;
    struct InputParams in;
    struct LinearParams w;
    /* [rows, w.rows] */
    POINTER(float) x;
};

struct FfnInParams {
    struct StepTables step;
    struct InputParams in;
    /* `data` is null without a gate. */
    struct LinearParams gate;
    struct LinearParams up;
    /* [rows, up.rows] */
    POINTER(float) h;
    uint32_t act;
    uint32_t reserved;
};

/* A convolution over the rows of each sequence, and its gates. */
struct ConvParams {
    struct StepTables step;
    /* [seqs] */
    POINTER(const struct StepRun) runs;
    /* [rows, channels] each; `before` and `after` may be null. */
    POINTER(const float) u;
    POINTER(const float) before;
    POINTER(const float) after;
    /* [channels, taps] */
    POINTER(const float) w;
    /* [channels], may be null. */
    POINTER(const float) bias;
    /* [rows, channels] */
    POINTER(float) out;
    /* [slots, taps - 1, channels] */
    POINTER(float) tails;
    uint32_t channels;
    /* At most CONV_MAX_TAPS. */
    uint32_t taps;
    /* True if SiLU follows the sum. */
    uint32_t silu;
    uint32_t reserved;
};

/* A Mamba-2 recurrence. */
struct MambaParams {
    struct StepTables step;
    /* [seqs] */
    POINTER(const struct StepRun) runs;
    /* [rows, channels]: the values of n_heads heads, then n_groups keys and as many queries. */
    POINTER(const float) c;
    /* [rows, n_heads, head_dim] */
    POINTER(const float) z;
    /* [rows, n_heads] */
    POINTER(const float) a;
    /* [n_heads] each. */
    POINTER(const float) decay;
    POINTER(const float) dt;
    POINTER(const float) skip;
    /* RMS norm over the heads of each group, or NORM_NONE; weight [n_heads, head_dim]. */
    struct NormParams norm;
    /* [rows, n_heads, head_dim] */
    POINTER(float) out;
    /* [slots, n_heads, key elements, value elements] */
    POINTER(float) matrices;
    uint32_t n_heads;
    uint32_t n_groups;
    uint32_t head_dim;
    uint32_t key_dim;
};

/* Recurrent part of a gated delta net. */
struct DeltaParams {
    struct StepTables step;
    /* [seqs] */
    POINTER(const struct StepRun) runs;
    /* [rows, channels], the channels being n_key_heads queries, n_key_heads keys, and n_heads values. */
    POINTER(const float) u;
    /* [rows, n_heads, head_dim] */
    POINTER(const float) z;
    /* [rows, n_heads] each. */
    POINTER(const float) a;
    POINTER(const float) b;
    /* [channels, DELTA_TAPS] */
    POINTER(const float) conv;
    /* [n_heads] each. */
    POINTER(const float) decay;
    POINTER(const float) dt;
    /* RMS norm over each head. */
    struct NormParams norm;
    /* [rows, n_heads, head_dim] */
    POINTER(float) out;
    /* [slots, n_heads, key elements, value elements] */
    POINTER(float) matrices;
    /* [slots, DELTA_TAPS - 1, channels] */
    POINTER(float) tails;
    /* [seqs, n_key_heads]: value heads of a key that have arrived, 0 between launches. */
    POINTER(uint32_t) arrived;
    /* Workspace of prefill: u after the convolution, with queries and keys normalised to length 1 (queries
     * then times 1 / sqrt(head_dim)), [rows, channels]; decay and strength, [rows, n_heads, 2]. */
    POINTER(float) convolved;
    POINTER(float) gates;
    /* Added to the sums of squares of queries and of keys. */
    float eps;
    uint32_t n_heads;
    uint32_t n_key_heads;
    /* True if the heads of `out` that share a key are adjacent. */
    uint32_t grouped;
};

/* A GPU timestamp. */
struct StampParams {
    POINTER(uint64_t) at;
};

/* Combines rows of products into the output of a stage. */
struct CombineParams {
    struct StepTables step;
    /* [rows, cols] each, and [rows, cols / run] for the gate, which may be null; `y` may be `out`. */
    POINTER(const float) gate;
    POINTER(const float) y;
    POINTER(float) out;
    uint32_t cols;
    uint32_t act;
    /* True if the result is added to `out`. */
    uint32_t add;
    /* Rows of products per batch row. */
    uint32_t each;
    /* Neighbouring elements of a row that share an element of the gate. */
    uint32_t run;
    /* Numbers of ACT_XIELU. */
    float positive;
    float negative;
    float beta;
    float eps;
    uint32_t reserved;
};

/* Rows that are normalised and rotated (Hadamard), or rotated back, in blocks of `block` columns. */
struct HadamardParams {
    struct StepTables step;
    struct NormParams norm;
    /* [rows, cols] each; may be the same buffer if there is no norm. */
    POINTER(const float) x;
    POINTER(float) to;
    /* [cols] */
    POINTER(const float) signs;
    uint32_t cols;
    uint32_t block;
    /* 1 / sqrt(block) */
    float factor;
    /* True if row i is batch row outputs[i]; true if the rows are rotated back. */
    uint32_t of_outputs;
    uint32_t back;
    uint32_t reserved;
};

/* Adds rows of products to the residual, with an optional norm on either. */
struct PostNormParams {
    struct StepTables step;
    /* Norms of the product, and of the residual that it is added to. */
    struct NormParams norm;
    struct NormParams residual;
    /* [rows, cols] */
    POINTER(const float) product;
    POINTER(float) x;
    uint32_t cols;
    /* Factor on the sum. */
    float scale;
};

/* One slot of a row: an expert that the row is routed to. */
struct ExpertChoice {
    uint32_t expert;
    /* Weight of the expert's output. */
    float weight;
    /* Row of the experts' products that belongs to the slot: the slot's number, or its place in expert
     * order. */
    uint32_t place;
    uint32_t reserved;
};

/* Neighbouring places of one expert, up to MMA_ROWS. */
struct ExpertTile {
    uint32_t expert;
    uint32_t first;
    uint32_t rows;
    uint32_t reserved;
};

/* A batch's rows sorted by expert. */
struct RoutesParams {
    /* [rows, used] */
    POINTER(struct ExpertChoice) choices;
    /* [n_tiles[0]]; n_tiles may be null: tiles are then neighbouring batch rows and expert 0. */
    POINTER(struct ExpertTile) tiles;
    POINTER(uint32_t) n_tiles;
    /* [places]: batch row of each place. */
    POINTER(uint32_t) rows;
    /* [experts]: rows routed to each; 0 between launches. */
    POINTER(uint32_t) counts;
    /* Counters of arrived blocks: one for `route`, then [rows, blocks of a slot] for `experts`; 0 between
     * launches. */
    POINTER(uint32_t) arrived;
    uint32_t n_experts;
    uint32_t n_used;
};

/* The choice of experts: src/program/routing.rs. */
struct RoutingParams {
    /* [experts], or null. */
    POINTER(const float) bias;
    /* ROUTING_. */
    uint32_t gating;
    uint32_t normalise;
    float scale;
    /* Experts per group, 0 without groups; the number of groups, and how many are used. */
    uint32_t group_size;
    uint32_t n_groups;
    uint32_t n_groups_used;
};

/* Routes every row, and makes tiles of rows that share an expert, unless `tiles` is null. */
struct RouteParams {
    struct StepTables step;
    struct RoutesParams routes;
    struct RoutingParams routing;
    /* [rows, experts] */
    POINTER(const float) logits;
};

/* One layer of the chosen experts, or their gate and up projections. */
struct ExpertsParams {
    struct StepTables step;
    /* Batch rows, or rows in order of places. */
    struct InputParams in;
    struct RoutesParams routes;
    /* [experts, 3]: gate, up and down; then the router. */
    POINTER(const struct LinearParams) table;
    /* As in RouteParams, if this launch routes its rows itself; or null. */
    POINTER(const float) logits;
    /* [places, outputs] */
    POINTER(float) out;
    /* [rows, outputs]: the residual to which the sums over slots are added, in a launch by slots; or null. */
    POINTER(float) x;
    /* Index of the layer; with an activation function, of the gate, which is followed by its up
     * projection. */
    uint32_t layer;
    uint32_t act;
    /* Per expert. */
    uint32_t outputs;
    uint32_t chunks;
    /* True if the inputs are batch rows. */
    uint32_t of_step;
    /* True if the sums are added to x, false if they replace it. */
    uint32_t adds;
};

/* x[r] += sum of weight x product over the row's slots, or x[r] = the sum. */
struct MixParams {
    struct StepTables step;
    struct RoutesParams routes;
    /* [places, cols] */
    POINTER(const float) products;
    /* [rows, cols] */
    POINTER(float) x;
    uint32_t cols;
    /* As in ExpertsParams. */
    uint32_t adds;
};

struct LogitsParams {
    struct StepTables step;
    struct InputParams in;
    struct LinearParams w;
    /* Another layer of the same input; it has 0 rows if there is none. */
    struct LinearParams other;
    /* [outputs, w.rows]; or [rows, w.rows] if the input is all batch rows. */
    POINTER(float) logits;
    /* The same for the other layer. */
    POINTER(float) other_logits;
    /* Bound on the magnitude of logits, or 0. */
    float soft_cap;
    uint32_t reserved;
};

struct SampleParams {
    struct StepTables step;
    /* [outputs] */
    POINTER(const struct StepSampling) sampling;
    /* [outputs, SAMPLE_CHANGES] */
    POINTER(const struct TokenChange) changes;
    /* [outputs, n_vocab] */
    POINTER(const float) logits;
    /* [outputs] */
    POINTER(uint32_t) tokens;
    /* [seqs]: last sampled token, for later steps. */
    POINTER(uint32_t) picked;
    /* [seqs, MAILBOXES], in host memory. */
    POINTER(uint32_t) mailboxes;
    /* [outputs, SAMPLE_MAX, stretches of a row]: the largest candidates of each stretch, in order. */
    POINTER(unsigned long long) largest;
    /* [outputs]: blocks that have arrived; 0 between launches. */
    POINTER(uint32_t) arrived;
    uint32_t n_vocab;
    uint32_t reserved;
};

#endif
