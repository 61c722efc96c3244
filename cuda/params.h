/* Parameters of every kernel: read by nvcc and by the host's compiler, and by the build script, which makes
 * Rust of it (params.rs). Every struct is free of padding. */
#ifndef STERNA_PARAMS_H
#define STERNA_PARAMS_H

#include <stdint.h>

/* An address on the device. */
#ifdef __cplusplus
#define POINTER(T) T*
#else
#define POINTER(T) uint64_t
#endif

/* How a linear layer's input is rounded to int8: not at all; a row under one scale; or, of each ROUND_COLS
 * columns under one scale, those whose largest magnitude is not below 1e-30, whose bits these are. */
#define ROUND_NONE 0
#define ROUND_ROWS 1
#define ROUND_BLOCKS 2
#define ROUND_COLS 32
#define ROUND_NOTHING_BITS 0x0da24260

/* Kinds of NormParams. */
#define NORM_NONE 0
#define NORM_RMS 1
#define NORM_LAYER 2

/* Activation functions. */
#define ACT_RELU2 0
#define ACT_SILU 1
#define ACT_GELU_TANH 2
/* Of a gate and what it multiplies, which it changes too. */
#define ACT_CLAMPED_SWIGLU 3

/* None, in CombineParams and ExpertsParams. */
#define ACT_NONE 4

/* Of CombineParams alone, what is multiplied with 1 / (1 + exp(-gate)): a gate of each element, or one of a
 * row. */
#define ACT_GATE 5
#define ACT_SHARE 6

/* Of CombineParams alone, another activation function: GELU with erf. */
#define ACT_GELU 7

/* Row index of a row that asks for no logits. */
#define NO_OUTPUT 0xffffffff

/* Token of a row that is fed with what was picked last for its sequence. */
#define TOKEN_PICKED 0xffffffff

/* Mailbox of a pick that no later step is fed with. */
#define NO_MAILBOX 0xffffffff

/* Mailboxes: words of the host that each sequence slot's picks go to in turn, so that the host may read one
 * while the next is made. */
#define MAILBOXES 2

/* Positions of one KV page. */
#define PAGE_POSITIONS 64

/* Positions that a split of a row has at least: what a wide block of `attend` takes in one round. */
#define ATTEND_LEAST 48

/* Parts of a row's positions that are merged at most: splits, or a block's warps or groups of lanes. */
#define MAX_PARTS 112

/* Query heads that one block of `attend` serves. */
#define ATTEND_HEADS 4

/* `attend` on tensor cores: query heads that one block serves at most; blocks that a multiprocessor has
 * registers for, over caches of halves, and over codes or blocks of elements; then, by the elements that
 * heads have at most, query vectors (rows times heads) of a block, its threads, and its shared memory by
 * cache. */
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
#define ATTEND_MMA_CODES_SHARED_BYTES_64 34112
#define ATTEND_MMA_CODES_SHARED_BYTES_128 79152
#define ATTEND_MMA_CODES_SHARED_BYTES_256 87664
#define ATTEND_MMA_BLOCKS_SHARED_BYTES_64 34880
#define ATTEND_MMA_BLOCKS_SHARED_BYTES_128 81456
#define ATTEND_MMA_BLOCKS_SHARED_BYTES_256 91248

/* Query heads that one block of `attend` over codes serves where it has tensor cores; its threads for heads
 * of 256 elements, and for others ATTEND_WIDE_THREADS. */
#define ATTEND_ROW_HEADS 8
#define ATTEND_ROW_THREADS_256 256

/* Threads of a block of the kernels named so. */
#define LINEAR_THREADS 256
#define EMBED_THREADS 256
#define ATTEND_THREADS 128
#define ATTEND_WIDE_THREADS 384
#define APPEND_THREADS 128
#define SAMPLE_THREADS 256
#define HEADS_THREADS 128
#define COMBINE_THREADS 256
#define STAMP_THREADS 32
#define ROUTE_THREADS 256
#define MIX_THREADS 256

/* Experts that a router may have, and that a row may go through. */
#define EXPERTS_MOST 512
#define EXPERTS_MOST_USED 32

/* `sample` draws from at most so many logits of a row, no more than it has threads; and a block of it goes
 * through so many. */
#define SAMPLE_MOST 256
#define SAMPLE_STRETCH 4096

/* Tokens of a row whose logits `sample` changes at most, no more than it has threads. */
#define SAMPLE_CHANGES 256

/* Longest vector of a cache of codes, and the shortest. */
#define CODES_MAX_DIM 256
#define CODES_MIN_DIM 32

/* Lengths that such a vector may have: powers of two. */
#define CODES_DIMS 4

/* Elements that lie together in a vector of codes. */
#define CODES_PIECE 16

/* Forms of BlockKvParams, and elements of a block. */
#define BLOCKS_HALVES 0
#define BLOCKS_Q8_0 1
#define BLOCKS_Q4_0 2
#define BLOCK_ELEMS 32

/* Shared memory of a block of `append__blocks`. */
#define APPEND_BLOCKS_SHARED_BYTES 1280

/* Entry of a page that has no exact page. */
#define NO_PAGE 0xffffffff

/* Rows that the convolution of `delta` sees. */
#define DELTA_TAPS 4

/* Threads of the kernels of a delta net's prompts, and of the one that goes row by row; rows that this one
 * brings to shared memory at a time, and columns of a head that a warp of it has. */
#define DELTA_THREADS 128
#define DELTA_SCAN_THREADS 128
#define DELTA_ROWS 8
#define DELTA_COLS 8

/* In place of the slot of a state, where a sequence begins. */
#define NO_STATE 0xffffffff

/* Shared memory of a block of `sample`. */
#define SAMPLE_SHARED_BYTES 35088

/* Columns up to which a linear kernel for single rows brings the weights of its norm to shared memory, where
 * they take 4 bytes each behind the header; activations take their place. */
#define NORM_SHARED_COLS 7168

/* The same of the kernel that rounds rows by block, which has as many columns in registers. */
#define ROUND_BLOCKS_COLS 14336

/* Columns that a block of `turn` has a quad a thread of, and how many it can have. */
#define TURN_COLS 1024
#define TURN_MOST_COLS 4096

/* Bytes before the activations in a linear kernel's shared memory, and how many rows the kernel for several
 * rows takes at a time, and the kernel on tensor cores. */
#define LINEAR_HEADER_BYTES 768
#define LINEAR_ROWS 8
#define MMA_ROWS 32

/* Where a row of floats is in shared memory part by part: columns that a part is a multiple of, and sets of
 * rows of weights of a warp at most, whose sums so far lie behind the part. */
#define PART_COLS 256
#define PART_UNITS 4

/* Of a linear kernel on tensor cores for integers: how many columns of its rows are in shared memory at a
 * time, bytes that a row of these takes there, how many such stages there are, and all of its shared memory.
 * */
#define MMA_INTS_COLS 256
#define MMA_INTS_PITCH 320
#define MMA_INTS_STAGES 4
#define MMA_INTS_SHARED_BYTES 44800

/* Shared memory of a linear kernel on tensor cores for weights that are no integers throughout. */
#define MMA_HALVES_SHARED_BYTES 38400

/* Of a linear kernel on tensor cores for inputs that are rounded by block: rows of the step and columns that
 * are in shared memory at a time, how many such stages there are, and all of its shared memory. */
#define MMA_CODES_ROWS 64
#define MMA_CODES_COLS 128
#define MMA_CODES_STAGES 3
#define MMA_CODES_SHARED_BYTES 31488

/* Rows of a step up to which another kernel multiplies them, floats from one row of its sums to the next, and
 * its shared memory. */
#define MMA_FEW_ROWS 16
#define MMA_FEW_PITCH 20
#define MMA_FEW_SHARED_BYTES 11008

/* One row of a step. */
struct StepRow {
    /* An id, or TOKEN_PICKED. */
    uint32_t token;
    uint32_t pos;
    uint32_t seq;
    /* Which row of the logits it asks for, or NO_OUTPUT. */
    uint32_t output;
};

/* The same row in a program whose rows see positions behind their own, or have types. */
struct StepText {
    /* Position of the last row of its sequence in the step. */
    uint32_t end;
    uint32_t token_type;
};

/* How many entries the tables of a step have. */
struct StepCounts {
    uint32_t rows;
    uint32_t outputs;
    uint32_t sampled;
    /* Of StepTile; 0 where no kernel of the step asks for them. */
    uint32_t tiles;
};

/* Rows of a step that follow each other, at positions of one sequence that do so too. */
struct StepTile {
    uint32_t first;
    uint32_t rows;
};

/* Rows of a step of one sequence, which follow each other, and the slots of its recurrent states: what it
 * goes on from, or NO_STATE, and where what is behind the last row goes. Without rows there is none. */
struct StepRun {
    uint32_t first;
    uint32_t rows;
    uint32_t from;
    uint32_t to;
};

/* How to pick a token from one row of logits. */
struct StepSampling {
    float temperature;
    float top_p;
    float min_p;
    /* How many of the largest logits a token is drawn from; 1 takes the largest. At most SAMPLE_MOST and
     * n_vocab. */
    uint32_t top_k;
    uint64_t seed;
    uint64_t counter;
    /* MAILBOXES times the slot of the row's sequence, plus which of the slot's words is next; or NO_MAILBOX.
     * */
    uint32_t mailbox;
    /* Entries of TokenChange. */
    uint32_t changes;
    /* Of tokens that occurred, as of program::Sampling; 1, 0 and 0 leave their logits as they are. */
    float repeat_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint32_t reserved;
};

/* What changes the logit of a token before one is picked. */
struct TokenChange {
    uint32_t token;
    /* How often it occurred. */
    uint32_t count;
    /* Added to its logit. */
    float bias;
    uint32_t reserved;
};

/* The beginning of the weights of the stage that follows, as far as they are worth bringing to the cache of
 * the card before it starts. */
struct NextWeights {
    POINTER(const uint8_t) data;
    uint64_t bytes;
};

/* Where kernels find what changes between two steps. The addresses never change. */
struct StepTables {
    POINTER(const struct StepCounts) counts;
    POINTER(const struct StepRow) rows;
    /* [outputs]: the row of the step that each row of logits belongs to. */
    POINTER(const uint32_t) outputs;
    /* [seqs, pages_stride] */
    POINTER(const uint32_t) pages;
    /* [seqs, pages_stride]: exact pages of windowed codecs, NO_PAGE where only the codes are left; or null.
     * */
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
    /* As the type's file in cuda/types says. */
    POINTER(const uint8_t) data;
    /* [rows], or null. */
    POINTER(const float) bias;
    float tensor_scale;
    float factor;
    uint32_t rows;
    /* Chunks of a row. */
    uint32_t chunks;
};

/* What makes int8 of a row: q = x scale, rounded; and the sum of q. */
struct RowQuant {
    float scale;
    int32_t sum;
};

/* What ROUND_COLS columns of int8 stand for: x = q scale; and their sum, scaled. */
struct BlockQuant {
    float scale;
    float sum;
};

/* Rows of int8 that `round` leaves to the products on tensor cores, and where blocks of these meet that share
 * a tile's columns. */
struct RoundedParams {
    /* [rows, row_bytes] as cuda/lib/input.cuh has them in shared memory, and a RowQuant each; both end with
     * the room of a tile. Of rows that are rounded by block, as cuda/lib/linear_codes.cuh has them, and
     * [blocks of columns, rows], the rows in whole tiles. */
    POINTER(uint8_t) rows;
    POINTER(struct RowQuant) quants;
    POINTER(struct BlockQuant) blocks;
    /* [blocks, 2], the sums of a tile's warps each; and [tiles]: blocks that have come, 0 between two
     * launches. */
    POINTER(int32_t) sums;
    POINTER(uint32_t) arrived;
};

/* The input of a linear layer: rows of a buffer, normed and rounded on the way, or beforehand. */
struct InputParams {
    /* [rows, cols] */
    POINTER(const float) x;
    struct NormParams norm;
    struct RoundedParams rounded;
    uint32_t cols;
    /* How it is rounded: ROUND_NONE and so on. */
    uint32_t rounding;
    /* Whether row i is row outputs[i] of the step. */
    uint32_t of_outputs;
    /* log2 of the lanes that share one row of weights: 3, 4 or 5; 1 on tensor cores, where a set has 16 rows.
     * */
    uint32_t lanes_log2;
    /* Bytes from one row of int8 to the next. */
    uint32_t row_bytes;
    /* Chunks of a row that are in shared memory at a time, where activations are floats: all of them, or such
     * a part of PART_COLS columns each. */
    uint32_t part_chunks;
};

/* One layer's cache. A page holds, for each KV head, PAGE_POSITIONS keys of `stride` elements, and then as
 * many values: [2, n_kv_heads, PAGE_POSITIONS, stride]. */
struct KvParams {
    POINTER(uint8_t) pages;
    uint64_t page_bytes;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    /* head_dim rounded up to a multiple of 8; the elements beyond it are 0. */
    uint32_t stride;
    /* 2 for half, 4 for float. */
    uint32_t elem_bytes;
};

/* How rotated vectors are kept as codes, here and not in memory because parameters are constants to a kernel.
 * */
struct CodesParams {
    /* Signs of the rotation, a bit an element, 1 for -1; and its factor, 1 / sqrt(head_dim). */
    uint32_t signs[8];
    float shrink;
    /* What a step of `table` is. */
    float unit;
    /* For unit vectors: borders between magnitudes in rising order, the first 0, and the magnitudes. */
    float borders[8];
    float magnitudes[8];
    /* What codes stand for, as bytes with a sign: of 3 bits all 8 codes, of 4 bits the upper 8 of 16. */
    uint32_t table[2];
    /* The same as halves, not in steps of `unit`: their low bytes, then their high bytes. */
    uint32_t halves[4];
};

/* How keys of two bits and signs are kept, beside CodesParams: in constant memory, one for each length from
 * CODES_MIN_DIM on. */
struct SignsParams {
    /* Signs of the projection of residuals, as in CodesParams. */
    uint32_t signs[8];
    /* What a sign counts. */
    float factor;
    /* The codebook of two bits, as in CodesParams; all 4 codes are in the first word of `table`. */
    float unit;
    float borders[2];
    float magnitudes[2];
    uint32_t table[2];
};

/* One layer's cache of codes. */
struct CodedKvParams {
    struct CodesParams codes;
    /* [pages, 2, n_kv_heads]: PAGE_POSITIONS scales as halves, one or two of each vector, then as many
     * vectors of codes. */
    POINTER(uint8_t) pages;
    /* [exact pages, 2, n_kv_heads, PAGE_POSITIONS, head_dim] of halves. */
    POINTER(uint16_t) exact;
    /* [exact pages, n_kv_heads, head_dim]: of a sequence's first page, the mean of its keys. */
    POINTER(float) means;
    /* Counts vectors that could not be kept as they were. */
    POINTER(uint64_t) clamped;
    uint64_t page_bytes;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    /* What is read from exact pages: the first pages of a sequence, and the newest full ones. */
    uint32_t sink_pages;
    uint32_t newest_pages;
};

/* One layer's cache in blocks of BLOCK_ELEMS elements under one scale; one of its sides may be halves
 * instead. Blocks are of transformed vectors: signs and factor of the rotation are as in CodesParams. */
struct BlockKvParams {
    uint32_t signs[8];
    float shrink;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    /* Of keys and of values. */
    uint32_t forms[2];
    uint32_t reserved;
    /* As cuda/lib/blocks.cuh says. */
    POINTER(uint8_t) pages;
    /* Counts vectors that could not be kept as they were. */
    POINTER(uint64_t) clamped;
    uint64_t page_bytes;
};

struct RopeParams {
    /* [positions, 2, pairs]: cosines, then sines, times the magnitude. */
    POINTER(const float) cos_sin;
    /* 0 where there is none. */
    uint32_t pairs;
    /* Whether pairs are neighbours instead of halves. */
    uint32_t adjacent;
};

struct EmbedParams {
    struct StepTables step;
    struct LinearParams table;
    /* [n_ctx, cols] and [n_types, cols] of f32; without data where there is none. */
    struct LinearParams positions;
    struct LinearParams types;
    /* [rows], where there are types. */
    POINTER(const struct StepText) texts;
    /* [seqs]: the tokens that were picked last. */
    POINTER(const uint32_t) picked;
    /* [rows, cols] */
    POINTER(float) x;
    uint32_t cols;
    /* Factor on a token's row. */
    float scale;
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
    /* [rows, 2, n_kv_heads, head_dim]: where keys and values go instead, for `append` to take them; or null.
     * */
    POINTER(float) raw;
};

struct HeadsParams {
    struct StepTables step;
    struct RopeParams rope;
    /* Over each head, or of no kind. */
    struct NormParams q_norm;
    struct NormParams k_norm;
    struct KvParams kv;
    /* [rows, n_heads, head_dim]: where queries go. */
    POINTER(float) q;
    /* [rows, n_heads, head_dim] of queries, which may be `q`; or, where there is a gate, [rows, n_heads, 2,
     * head_dim]: each head's query, and behind it its part of the gate, which goes to `gate`, or null. */
    POINTER(const float) queries;
    POINTER(float) gate;
    /* [n_kv_heads, head_dim] each, of rows that lie `pitch` elements apart. */
    POINTER(const float) keys;
    POINTER(const float) values;
    /* As in AttnInParams. */
    POINTER(float) raw;
    uint32_t n_heads;
    uint32_t pitch;
};

#include "params_attend.h"

/* Rows of a step that are normed and rounded once, for products on tensor cores. */
struct RoundParams {
    struct StepTables step;
    struct InputParams in;
    /* Chunks of a row. */
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
    /* Without data where there is none. */
    struct LinearParams gate;
    struct LinearParams up;
    /* [rows, up.rows] */
    POINTER(float) h;
    uint32_t act;
    uint32_t reserved;
};

/* The recurrent part of a gated delta net. */
struct DeltaParams {
    struct StepTables step;
    /* [seqs] */
    POINTER(const struct StepRun) runs;
    /* [rows, channels], the channels being n_key_heads queries, as many keys, and n_heads values. */
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
    /* Over each head: RMS. */
    struct NormParams norm;
    /* [rows, n_heads, head_dim] */
    POINTER(float) out;
    /* [slots, n_heads, elements of keys, elements of values] */
    POINTER(float) matrices;
    /* [slots, DELTA_TAPS - 1, channels] */
    POINTER(float) tails;
    /* [seqs, n_key_heads]: heads of a key that have come, 0 between two launches. */
    POINTER(uint32_t) arrived;
    /* Of prompts: u convolved, queries and keys of length 1 (queries then by 1 / sqrt(head_dim)), [rows,
     * channels]; decay and strength, [rows, n_heads, 2]. */
    POINTER(float) convolved;
    POINTER(float) gates;
    /* Added to the sums of squares of queries and of keys. */
    float eps;
    uint32_t n_heads;
    uint32_t n_key_heads;
    /* Whether heads of `out` with one key lie together. */
    uint32_t grouped;
};

/* A time of the card's. */
struct StampParams {
    POINTER(uint64_t) at;
};

/* Rows of products that become what a stage writes. */
struct CombineParams {
    struct StepTables step;
    /* [rows, cols] each, or [rows] of an ACT_SHARE; the gate may be null, and `y` be `out`. */
    POINTER(const float) gate;
    POINTER(const float) y;
    POINTER(float) out;
    uint32_t cols;
    uint32_t act;
    /* Whether it is added to what is there. */
    uint32_t add;
    /* Rows of products for each row of the step. */
    uint32_t each;
};

/* Rows that are normed and brought into a rotated basis, or out of one, in runs of `block` columns. */
struct TurnParams {
    struct StepTables step;
    struct NormParams norm;
    /* [rows, cols] each; the same if there is no norm. */
    POINTER(const float) x;
    POINTER(float) to;
    /* [cols] */
    POINTER(const float) signs;
    uint32_t cols;
    uint32_t block;
    /* 1 / sqrt(block) */
    float factor;
    /* Whether row i is row outputs[i] of the step, and whether the rows are brought out of the basis. */
    uint32_t of_outputs;
    uint32_t back;
    uint32_t reserved;
};

/* Rows of products that are added, either side being normed or not. */
struct PostNormParams {
    struct StepTables step;
    /* Of the product, and of what it is added to. */
    struct NormParams norm;
    struct NormParams residual;
    /* [rows, cols] */
    POINTER(const float) product;
    POINTER(float) x;
    uint32_t cols;
    uint32_t reserved;
};

/* That a row goes through an expert: one of the row's slots. */
struct ExpertChoice {
    uint32_t expert;
    /* What the expert's output counts. */
    float weight;
    /* Which row of the experts' products is the slot's: the slot, or in the order of experts. */
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

/* A step's rows sorted by expert. */
struct RoutesParams {
    /* [rows, used] */
    POINTER(struct ExpertChoice) choices;
    /* [n_tiles[0]]; the latter may be null, for tiles of neighbouring rows of the step and expert 0. */
    POINTER(struct ExpertTile) tiles;
    POINTER(uint32_t) n_tiles;
    /* [places]: rows of the step. */
    POINTER(uint32_t) rows;
    /* [experts]: rows that have chosen each; 0 between two launches. */
    POINTER(uint32_t) counts;
    /* Blocks that have come: for `route`, and behind it [rows, blocks of a slot] for `experts`; 0 between two
     * launches. */
    POINTER(uint32_t) arrived;
    uint32_t n_experts;
    uint32_t n_used;
};

/* The choice of every row, and tiles of rows that share an expert. */
struct RouteParams {
    struct StepTables step;
    struct RoutesParams routes;
    /* [rows, experts] */
    POINTER(const float) logits;
};

/* A layer of the experts that rows have chosen, or a gate and what it multiplies. */
struct ExpertsParams {
    struct StepTables step;
    /* Rows of the step, or of places. */
    struct InputParams in;
    struct RoutesParams routes;
    /* [experts, 3]: gate, up and down; and behind them the router. */
    POINTER(const struct LinearParams) table;
    /* As in RouteParams, where this launch finds the choices of its rows itself; or null. */
    POINTER(const float) logits;
    /* [places, outputs] */
    POINTER(float) out;
    /* [rows, outputs]: where the sums of places are added, by a launch that takes slots; or null. */
    POINTER(float) x;
    /* Which layer; with an activation function, the gate and the one behind it. */
    uint32_t layer;
    uint32_t act;
    /* Of each expert. */
    uint32_t outputs;
    uint32_t chunks;
    /* Whether inputs are the step's rows. */
    uint32_t of_step;
    uint32_t reserved;
};

/* x[r] += sum of weight x product of the row's slots. */
struct MixParams {
    struct StepTables step;
    struct RoutesParams routes;
    /* [places, cols] */
    POINTER(const float) products;
    /* [rows, cols] */
    POINTER(float) x;
    uint32_t cols;
    uint32_t reserved;
};

struct LogitsParams {
    struct StepTables step;
    struct InputParams in;
    struct LinearParams w;
    /* Another layer of the same input, without rows where there is none. */
    struct LinearParams other;
    /* [outputs, w.rows]; or [rows, w.rows], where the input is that of the step's rows. */
    POINTER(float) logits;
    /* The same of the other layer. */
    POINTER(float) other_logits;
    /* A bound on their magnitude, or 0. */
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
    /* [seqs], for the steps that follow. */
    POINTER(uint32_t) picked;
    /* [seqs, MAILBOXES], memory of the host. */
    POINTER(uint32_t) mailboxes;
    /* [outputs, SAMPLE_MOST, stretches of a row]: the largest candidates of each stretch, in order. */
    POINTER(unsigned long long) largest;
    /* [outputs]: blocks that have come; 0 between two launches. */
    POINTER(uint32_t) arrived;
    uint32_t n_vocab;
    uint32_t reserved;
};

#endif
