// Attend over blocks: out[r] = softmax(scale q[r] . K[first ..= last]) V, for caches whose keys, values or
// both are blocks of rotated vectors (lib/blocks.cuh). Split-K flash decoding, page by page, as in
// attend_codes.cuh, but without exact pages and without a mean.
//
// Scores of blocks are int8 products: a lane rounds its piece of a query to 255 steps of the piece's largest
// element, dp4a sums its products with the piece of a key exactly, and both scales multiply the sum. Scores
// of f16 keys are float products. Values are integers multiplied by weight and scale as floats, or f16.
//
// Reads head_dim elements of keys and of values per position and KV head, and their scales. Queries are
// rotated beforehand if keys are (append_blocks.cuh); the output is rotated back here if values are.
#pragma once

#include "../lib/blocks.cuh"
#include "attend_codes.cuh"

// The queries of a block of threads, as used by one lane.
struct BlockQuery {
    // As in AttendQuery.
    const float* floats;
    uint32_t bytes[ATTEND_HEADS][4];
    float step[ATTEND_HEADS];
    // Initial value of the sums: compensates for the offset of 8 in the bytes of q4_0.
    int32_t start[ATTEND_HEADS];
};

struct BlockPosition {
    BlockPiece key, value;
    const BlockKvParams* kv;

    DEVICE void load(
        const BlockPage& keys, const BlockPage& values, uint32_t place, uint32_t, uint32_t piece
    ) {
        key.load(keys, place, piece);
        value.load(values, place, piece);
    }
    DEVICE void scores(
        const BlockQuery& q, uint32_t head_dim, uint32_t piece, uint32_t lanes, float (&out)[ATTEND_HEADS]
    ) const {
        uint32_t form = kv->forms[0];
        if (form == BLOCKS_HALVES) {
            float k[CODES_PIECE];
            key.floats(form, k);
#pragma unroll
            for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
                const float* query = q.floats + h * head_dim + piece * CODES_PIECE;
                out[h] = 0.0f;
#pragma unroll
                for (uint32_t e = 0; e < CODES_PIECE; e++) out[h] = fmaf(query[e], k[e], out[h]);
            }
        } else {
            uint32_t words[4];
            key.bytes(form, words);
            float scale = float_of_half(key.scale);
#pragma unroll
            for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
                int32_t sum = q.start[h];
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) sum = __dp4a(int32_t(words[i]), int32_t(q.bytes[h][i]), sum);
                out[h] = float(sum) * (q.step[h] * scale);
            }
        }
#pragma unroll
        for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
            for (uint32_t mask = lanes / 2; mask > 0; mask /= 2)
                out[h] += __shfl_xor_sync(kWarp, out[h], mask);
        }
    }
    DEVICE float value_step() const {
        return kv->forms[1] == BLOCKS_HALVES ? 1.0f : float_of_half(value.scale);
    }
    DEVICE void values(float (&out)[CODES_PIECE]) const { value.floats(kv->forms[1], out); }
};

DEVICE void attend_blocks(const AttendBlocksParams& p) {
    // The step's tables are uploaded before its first kernel starts.
    PagesTask<ATTEND_HEADS> task(p);
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    if (!task.exists) return;
    uint32_t head_dim = p.kv.head_dim;
    PieceLanes of_thread(head_dim);
    BlockQuery q;
    q.floats = task.load_queries(p);
#pragma unroll
    for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
        const float* query = q.floats + h * head_dim + of_thread.piece * CODES_PIECE;
        // As integers, the bits of magnitudes sort like floats, with NaN above everything, so NaN is kept.
        uint32_t largest = 0;
        for (uint32_t e = 0; e < CODES_PIECE; e++)
            largest = Max::of(largest, __float_as_uint(query[e]) & 0x7fffffffu);
        float most = __uint_as_float(largest),
            to_bytes = largest > 0 && largest < 0x7f800000u ? 127.0f / most : 0.0f;
        q.step[h] = most / 127.0f;
        q.start[h] = 0;
        for (uint32_t i = 0; i < 4; i++) {
            q.bytes[h][i] = to_bytes > 0.0f ? bytes_of_floats(query + 4 * i, to_bytes) : 0u;
            if (p.kv.forms[0] == BLOCKS_Q4_0)
                q.start[h] = __dp4a(int32_t(q.bytes[h][i]), int32_t(0xf8f8f8f8u), q.start[h]);
        }
    }

    AttendState state = no_state();
    for (uint32_t i = task.first_page; i < task.end_page; i++) {
        uint32_t page = page_of(p.step, task.row.seq, i * PAGE_POSITIONS);
        BlockPage keys(p.kv, page, 0, task.kv_head), values(p.kv, page, 1, task.kv_head);
        BlockPosition empty{{}, {}, &p.kv};
        take_page<kCodesAtOnce>(state, q, keys, values, empty, task.hidden(i), task.positions(i), head_dim,
            of_thread.lanes, score_cap(p.common));
    }
    of_thread.leave(state, head_dim);
    task.finish(p, of_thread.groups, head_dim, p.kv, p.kv.forms[1] != BLOCKS_HALVES);
}
