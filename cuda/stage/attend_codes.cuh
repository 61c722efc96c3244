// Attend over codes: out[r] = softmax(scale q[r] . K[first ..= pos]) V, for caches whose older pages hold
// codes of rotated vectors. Rows do not attend ahead.
//
// Split-K flash decoding and merging as in attend.cuh, but page by page: a page is read either from its codes
// or from its exact (f16) page, depending on the row's position (src/program/step.rs). A lane owns pieces of
// CODES_PIECE elements, so head_dim / CODES_PIECE neighbouring lanes share a position.
//
// Scores of codes are int8 products: the query is rounded to 255 steps of its largest element, codes are
// converted to bytes by table look-up, and dp4a sums up to head_dim products exactly. The signs of a residual
// contribute a popcount of bit-planes (lib/signs.cuh). The subtracted mean of a page's keys contributes the
// same term at all of its positions, a float product per page and query head: the block computes those of
// several pages at a time, each by one group of lanes. Values are bytes too, multiplied by weight and scale
// as floats. No page is dequantised into memory.
//
// Reads 2 x (2 + bits x head_dim / 8) bytes per position and KV head, 2 more with signs, a mean per page, and
// 4 x head_dim per exact position. Queries are rotated beforehand (append.cuh); the output is rotated back
// here.
#pragma once

#include "../lib/codes.cuh"
#include "../lib/halves.cuh"
#include "../lib/over_cache.cuh"
#include "../lib/parts.cuh"
#include "../lib/reduce.cuh"
#include "../lib/rotate.cuh"
#include "../lib/step.cuh"

// Running result of a group of lanes, for its pieces.
struct AttendState {
    Softmax soft[ATTEND_HEADS];
    float values[ATTEND_HEADS][CODES_PIECE];
};

// The queries of a block, as used by one lane.
struct AttendQuery {
    // [ATTEND_HEADS, head_dim] in shared memory, multiplied by the scale of scores.
    const float* floats;
    // The lane's piece as bytes, and the value of one unit of a byte product.
    uint32_t bytes[ATTEND_HEADS][4];
    float step[ATTEND_HEADS];
    // Product with the mean of the current page's keys.
    float mean[ATTEND_HEADS];
};

// With the further data that the codes of keys need, and their table.
template <class K>
struct CodedQuery : AttendQuery {
    typename K::Query more[ATTEND_HEADS];
    uint32_t table[2];
};

struct ExactPosition {
    uint4 key[2], value[2];

    DEVICE void load(
        const uint16_t* keys, const uint16_t* values, uint32_t place, uint32_t head_dim, uint32_t piece
    ) {
        uint32_t at = place * head_dim + piece * CODES_PIECE;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            key[i] = load16(keys + at + 8 * i);
            value[i] = load16(values + at + 8 * i);
        }
    }
    DEVICE void scores(
        const AttendQuery& q, uint32_t head_dim, uint32_t piece, uint32_t lanes, float (&out)[ATTEND_HEADS]
    ) const {
        float k[CODES_PIECE];
        floats_of_halves(key, k);
#pragma unroll
        for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
            const float* query = q.floats + h * head_dim + piece * CODES_PIECE;
            float score = 0.0f;
#pragma unroll
            for (uint32_t e = 0; e < CODES_PIECE; e++) score = fmaf(query[e], k[e], score);
            for (uint32_t mask = lanes / 2; mask > 0; mask /= 2) score += __shfl_xor_sync(kWarp, score, mask);
            out[h] = score;
        }
    }
    DEVICE float value_step() const { return 1.0f; }
    DEVICE void values(float (&out)[CODES_PIECE]) const { floats_of_halves(value, out); }
};

template <class C>
struct CodedPosition {
    using K = typename C::Keys;
    using V = typename C::Values;

    typename K::Piece key;
    typename V::Piece value;
    uint16_t key_scales[K::kScales], value_scale;
    const CodesParams* codes;

    DEVICE void load(
        const CodedPage<K>& keys, const CodedPage<V>& values, uint32_t place, uint32_t head_dim,
        uint32_t piece
    ) {
        uint32_t n_pieces = head_dim / CODES_PIECE;
        key = K::load(keys.vector(head_dim, place), n_pieces, piece);
        value = V::load(values.vector(head_dim, place), n_pieces, piece);
#pragma unroll
        for (uint32_t i = 0; i < K::kScales; i++) key_scales[i] = *keys.scale(place, i);
        value_scale = *values.scale(place);
    }
    DEVICE void scores(
        const CodedQuery<K>& q, uint32_t head_dim, uint32_t piece, uint32_t lanes, float (&out)[ATTEND_HEADS]
    ) const {
        uint32_t words[4];
        K::bytes(key, q.table, words);
        float scale;
        if constexpr (K::kGroups) {
            scale = K::scale(head_dim, key_scales[0], piece >= lanes / 2);
        } else {
            scale = float_of_half(key_scales[0]);
        }
#pragma unroll
        for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
            int32_t sum = 0;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) sum = __dp4a(int32_t(words[i]), int32_t(q.bytes[h][i]), sum);
            if constexpr (K::kGroups) {
                float score = float(sum) * (q.step[h] * scale);
                out[h] = reduce_lanes<Sum>(score, int(lanes)) + q.mean[h];
            } else if constexpr (K::kScales == 1) {
                sum = reduce_lanes<Sum>(sum, int(lanes));
                out[h] = fmaf(float(sum), q.step[h] * scale, q.mean[h]);
            } else {
                int32_t counted = 2 * K::count(q.more[h], key.signs, piece) - q.more[h].ones;
                float of_signs = float(counted) * (q.more[h].step * float_of_half(key_scales[1]));
                float score = fmaf(float(sum), q.step[h] * scale, of_signs);
                out[h] = reduce_lanes<Sum>(score, int(lanes)) + q.mean[h];
            }
        }
    }
    DEVICE float value_step() const { return float_of_half(value_scale) * codes->unit; }
    DEVICE void values(float (&out)[CODES_PIECE]) const {
        uint32_t words[4];
        V::bytes(value, codes->table, words);
#pragma unroll
        for (uint32_t e = 0; e < CODES_PIECE; e++) out[e] = float(int8_t(words[e / 4] >> (8 * (e % 4))));
    }
};

// Adds positions `first` to n of a page, N per group of lanes at a time. All lanes of a warp run the same
// number of rounds, because they exchange scores. `empty` is the initial value of a position.
template <int N, class Position, class Query, class Keys, class Values>
DEVICE void take_page(
    AttendState& state, const Query& q, const Keys& keys, const Values& values, const Position& empty,
    uint32_t first, uint32_t n, uint32_t head_dim, uint32_t lanes, float cap
) {
    uint32_t piece = threadIdx.x & (lanes - 1), group = threadIdx.x / lanes, groups = blockDim.x / lanes;
    for (uint32_t base = first; base < n; base += groups * N) {
        Position at[N];
#pragma unroll
        for (int i = 0; i < N; i++) at[i] = empty;
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint32_t place = base + i * groups + group;
            // Past the end, loads the last position again; its score becomes -inf.
            at[i].load(keys, values, place < n ? place : n - 1, head_dim, piece);
        }
        float scores[N][ATTEND_HEADS];
#pragma unroll
        for (int i = 0; i < N; i++) {
            at[i].scores(q, head_dim, piece, lanes, scores[i]);
            bool there = base + i * groups + group < n;
#pragma unroll
            for (uint32_t h = 0; h < ATTEND_HEADS; h++)
                scores[i][h] = there ? capped_score(scores[i][h], cap) : -INFINITY;
        }
#pragma unroll
        for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
            float largest = state.soft[h].largest;
#pragma unroll
            for (int i = 0; i < N; i++) largest = fmaxf(largest, scores[i][h]);
            float by = rescale(state.soft[h].largest, largest);
            state.soft[h] = {largest, state.soft[h].sum * by};
#pragma unroll
            for (uint32_t e = 0; e < CODES_PIECE; e++) state.values[h][e] *= by;
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            if (base + i * groups + group >= n) continue;
            float v[CODES_PIECE], step = at[i].value_step();
            at[i].values(v);
#pragma unroll
            for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
                float weight = exp2_fast(scores[i][h] - state.soft[h].largest);
                state.soft[h].sum += weight;
                weight *= step;
#pragma unroll
                for (uint32_t e = 0; e < CODES_PIECE; e++)
                    state.values[h][e] = fmaf(weight, v[e], state.values[h][e]);
            }
        }
    }
}

// Positions of codes per group of lanes and round.
constexpr int kCodesAtOnce = 2;

// Work of a block that goes page by page: its row, KV head, up to kHeads query heads, and pages.
template <uint32_t kHeads>
struct PagesTask {
    StepRow row = {};
    uint32_t r, n_positions = 0, first_page = 0, end_page = 0, split = 0, splits = 0;
    // First position that the row attends to.
    uint32_t seen = 0;
    uint32_t kv_head = 0, tile = 0, heads = 0;
    uint64_t first_head = 0;
    bool exists;

    template <class Params>
    DEVICE explicit PagesTask(const Params& p) {
        r = blockIdx.z;
        exists = r < p.step.counts->rows;
        if (!exists) return;
        row = p.step.rows[r];
        uint32_t last = last_seen(p.common, r, row.pos);
        n_positions = last + 1;
        seen = first_seen(row.pos, p.common.window);
        uint32_t before = seen / PAGE_POSITIONS, n_pages = last / PAGE_POSITIONS + 1;
        uint32_t n_read = n_positions - before * PAGE_POSITIONS;
        uint32_t per_split = positions_of_split(n_read, p.splits, PAGE_POSITIONS) / PAGE_POSITIONS;
        splits = (n_pages - before + per_split - 1) / per_split;
        split = blockIdx.y;
        exists = split < splits;
        first_page = before + split * per_split;
        end_page = first_page + per_split < n_pages ? first_page + per_split : n_pages;
        kv_head = blockIdx.x / p.head_tiles;
        tile = blockIdx.x % p.head_tiles;
        heads = p.common.group - tile * kHeads < kHeads ? p.common.group - tile * kHeads : kHeads;
        first_head = (uint64_t(r) * p.kv.n_kv_heads + kv_head) * p.common.group + tile * kHeads;
    }

    // End of the positions of page i that the row attends to, and the first of them.
    DEVICE uint32_t positions(uint32_t i) const {
        uint32_t left = n_positions - i * PAGE_POSITIONS;
        return left < PAGE_POSITIONS ? left : PAGE_POSITIONS;
    }
    DEVICE uint32_t hidden(uint32_t i) const {
        return i == seen / PAGE_POSITIONS ? seen % PAGE_POSITIONS : 0;
    }

    // Loads the queries into shared memory, [kHeads, head_dim]. Scores are in log2 units, so that weights are
    // powers of two.
    template <class Params>
    DEVICE const float* load_queries(const Params& p) const {
        float* floats = reinterpret_cast<float*>(shared_memory());
        uint32_t head_dim = p.kv.head_dim;
        for (uint32_t at = threadIdx.x; at < kHeads * head_dim; at += blockDim.x) {
            floats[at] = at < heads * head_dim
                ? p.common.q[first_head * head_dim + at] * (p.common.scale * 1.4426950408889634f)
                : 0.0f;
        }
        __syncthreads();
        return floats;
    }

    // Merges the parts of the block's `groups` in shared memory, then the parts of other blocks, if any, and
    // writes the result; if `transformed`, it is rotated back by `rotation`.
    template <class Params, class Rotation>
    DEVICE void finish(
        const Params& p, uint32_t groups, uint32_t head_dim, const Rotation& rotation, bool transformed
    ) const {
        float* merged = parts_of_groups<kHeads>(groups, head_dim).of(groups, 0);
        uint64_t at = (uint64_t(r) * p.kv.n_kv_heads + kv_head) * p.head_tiles + tile;
        const float* sinks =
            p.common.sinks ? p.common.sinks + kv_head * p.common.group + tile * kHeads : nullptr;
        Parts<kHeads> from{p.common.partial, p.common.arrived, at, splits, p.splits, head_dim, sinks};
        auto write = [&](uint32_t h, uint32_t e, float value) { merged[h * head_dim + e] = value; };
        if (!merge_parts(from, split, groups, heads, write)) return;
        __syncthreads();
        for (uint32_t h = threadIdx.x / kWarpSize; h < heads; h += blockDim.x / kWarpSize) {
            Vector v = load_vector(merged + h * head_dim, head_dim);
            if (transformed) transform_back(v, rotation);
            store_vector(v, p.common.out + (first_head + h) * head_dim);
        }
    }
};

// A thread's piece of a vector, and its group of lanes, which together hold one vector.
struct PieceLanes {
    uint32_t lanes, piece, group, groups;

    DEVICE explicit PieceLanes(uint32_t head_dim) {
        lanes = head_dim / CODES_PIECE;
        piece = threadIdx.x & (lanes - 1);
        group = threadIdx.x / lanes;
        groups = blockDim.x / lanes;
    }

    // Stores the group's result for PagesTask::finish, over the queries.
    DEVICE void leave(const AttendState& state, uint32_t head_dim) const {
        __syncthreads();
        PartsAt<ATTEND_HEADS> parts = parts_of_groups<ATTEND_HEADS>(groups, head_dim);
#pragma unroll
        for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
            if (piece == 0) parts.soft(group, h) = state.soft[h];
            float4* to = reinterpret_cast<float4*>(parts.of(group, h) + piece * CODES_PIECE);
            const float(&v)[CODES_PIECE] = state.values[h];
#pragma unroll
            for (uint32_t i = 0; i < CODES_PIECE; i += 4)
                to[i / 4] = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
        }
    }
};

// An empty softmax.
DEVICE AttendState no_state() {
    AttendState state = {};
#pragma unroll
    for (uint32_t h = 0; h < ATTEND_HEADS; h++) state.soft[h] = {-INFINITY, 0.0f};
    return state;
}

// Four neighbouring elements multiplied by `by` and rounded to bytes.
DEVICE uint32_t bytes_of_floats(const float* x, float by) {
    uint32_t word = 0;
    for (uint32_t b = 0; b < 4; b++) word |= (uint32_t(int32_t(rintf(x[b] * by))) & 255u) << (8 * b);
    return word;
}

// Writes the products of the queries with the mean of page i to those of a group of lanes, if the row reads
// codes of the page. All lanes of a warp call it.
template <class C>
DEVICE void multiply_mean(
    const AttendCodesParams& p, const PagesTask<ATTEND_HEADS>& task, const AttendQuery& q, uint32_t i,
    const PieceLanes& at, float* of_means
) {
    uint32_t page = NO_PAGE, words[4] = {};
    if (i < task.end_page) page = coded_page_for(p.kv, p.step, task.row.seq, task.n_positions, i);
    float scale = 0.0f;
    if (page != NO_PAGE) {
        MeanAt mean = mean_at<C>(p.kv, page, task.kv_head);
        load_words<4>(mean.elems + at.piece * CODES_PIECE, words);
        scale = float_of_half(*mean.scale());
    }
#pragma unroll
    for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
        const float* query = q.floats + h * p.kv.head_dim + at.piece * CODES_PIECE;
        float product = 0.0f;
#pragma unroll
        for (uint32_t e = 0; e < CODES_PIECE; e++)
            product = fmaf(query[e], float(int8_t(words[e / 4] >> (8 * (e % 4)))), product);
        product = reduce_lanes<Sum>(product, int(at.lanes));
        if (at.piece == 0) of_means[at.group * ATTEND_HEADS + h] = product * scale;
    }
}

template <class C>
DEVICE void attend_codes(const AttendCodesParams& p) {
    // The step's tables are uploaded before its first kernel starts.
    PagesTask<ATTEND_HEADS> task(p);
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    if (!task.exists) return;
    uint32_t head_dim = p.kv.head_dim;
    PieceLanes of_thread(head_dim);
    uint32_t lanes = of_thread.lanes, piece = of_thread.piece;
    CodedQuery<typename C::Keys> q;
    q.floats = task.load_queries(p);
    C::key_table(p.kv, piece, lanes, q.table);
    float unit = 1.0f;
    if constexpr (!C::Keys::kGroups) unit = C::key_book(p.kv).unit;
#pragma unroll
    for (uint32_t h = 0; h < ATTEND_HEADS; h++) {
        const float* query = q.floats + h * head_dim + piece * CODES_PIECE;
        float most = 0.0f;
        for (uint32_t e = 0; e < CODES_PIECE; e++) most = fmaxf(most, fabsf(query[e]));
        most = reduce_lanes<Largest>(most, int(lanes));
        float to_bytes = most > 0.0f ? 127.0f / most : 0.0f;
        q.step[h] = most / 127.0f * unit;
        for (uint32_t i = 0; i < 4; i++) q.bytes[h][i] = bytes_of_floats(query + 4 * i, to_bytes);
    }
    // After the queries, [groups, ATTEND_HEADS]: their products with the means of pages. The parts of the
    // results need more room than this and the projected queries.
    float* of_means = reinterpret_cast<float*>(shared_memory()) + ATTEND_HEADS * head_dim;
    if constexpr (C::Keys::kScales == 2) {
        float* projected = of_means + of_thread.groups * ATTEND_HEADS;
        C::Keys::project(q.floats, head_dim, projected);
        __syncthreads();
#pragma unroll
        for (uint32_t h = 0; h < ATTEND_HEADS; h++) q.more[h] = C::Keys::query(projected, head_dim, h, piece);
    }

    AttendState state = no_state();
    const float cap = score_cap(p.common);
    for (uint32_t i = task.first_page; i < task.end_page; i++) {
        uint32_t of_group = (i - task.first_page) % of_thread.groups;
        if (of_group == 0) {
            __syncthreads();
            multiply_mean<C>(p, task, q, i + of_thread.group, of_thread, of_means);
            __syncthreads();
        }
        uint32_t n = task.positions(i), hidden = task.hidden(i),
            exact = exact_page_for(p.kv, p.step, task.row.seq, task.n_positions, i);
        if (exact != NO_PAGE) {
            const uint16_t* keys = exact_head(p.kv, exact, 0, task.kv_head);
            const uint16_t* values = exact_head(p.kv, exact, 1, task.kv_head);
            take_page<1>(state, q, keys, values, ExactPosition{}, hidden, n, head_dim, lanes, cap);
        } else {
            uint32_t page = page_of(p.step, task.row.seq, i * PAGE_POSITIONS);
            auto keys = coded_keys<C>(p.kv, page, task.kv_head);
            auto values = coded_values<C>(p.kv, page, task.kv_head);
            CodedPosition<C> empty{};
            empty.codes = &p.kv.codes;
#pragma unroll
            for (uint32_t h = 0; h < ATTEND_HEADS; h++) q.mean[h] = of_means[of_group * ATTEND_HEADS + h];
            take_page<kCodesAtOnce>(state, q, keys, values, empty, hidden, n, head_dim, lanes, cap);
        }
    }
    of_thread.leave(state, head_dim);
    task.finish(p, of_thread.groups, head_dim, p.kv.codes, true);
}
