// Attend over codes on tensor cores, row by row: out[r] = softmax(scale q[r] . K[first ..= pos]) V, for those
// codecs of attend_codes.cuh whose keys have no signs, and a head_dim of D.
//
// Split-K flash decoding, page by page, merged as in attend_codes.cuh: a block owns one row, one KV head with
// up to ATTEND_ROW_HEADS of its query heads, and some pages; each warp processes 16 positions at a time.
// Query heads are the columns of the products, positions or elements their rows. Codes do not pass through
// shared memory: a lane loads what its operand registers need. This works because the k index of an operand
// may be any element as long as keys and queries agree, and the rows of the value tile may be in any order:
//
//   scores: a lane has D / 4 neighbouring elements of the keys of two positions as bytes, from D / 64 pieces,
//   and D / 4 of one query.
//   weights: positions x heads as computed, transposed within the warp (transpose_matrix) to be an operand.
//   values: a lane has D / 8 neighbouring elements of four positions, and looks up words of two f16, one for
//   each of two positions.
//
// Queries are rounded to 255 steps of their largest element, and byte products are summed exactly: scores
// equal those of dp4a. Values are the f16 nearest to the codebook. A weight times its value's scale is split
// into two f16 (22 bits), and so is a query for exact pages; so sums are about as precise as float products.
//
// Weights are relative to the largest product of a weight and the power of two in its value's scale, not to
// the largest weight. So the products are below 2^15, and large where it matters, for any scales. Scales span
// 40 powers of two; a weight kept as a float loses no precision over that range.
//
// Scores of codes contain the products of queries with the mean of the page. A warp computes those of 16 of
// the block's pages at once, with the pages for the rows, and all warps read them from shared memory. They
// are byte products too, but with queries in three bytes, because the error is the same at all positions of a
// page, and means can be much larger than what is left of the keys.
//
// In a step of one row a block rotates its queries itself, and the block with the newest page appends the
// row's key and value (append.cuh); in larger steps queries are rotated beforehand. The output is rotated
// back here. Reads 2 x (2 + bits x D / 8) bytes per position and KV head, a mean per page, and 4 x D bytes
// per exact position. Requires head_dim = D, `arrived` = 0.
#pragma once

#include "append.cuh"
#include "attend_codes.cuh"

// Positions that a warp processes at a time.
constexpr uint32_t kTilePositions = 16;

// Warps per block, limited by the shared memory for their results. With a head_dim of 128 or 256, a block has
// all registers of a multiprocessor: in half of them, the results and the codes of a page do not fit.
template <int D>
constexpr uint32_t kRowWarps =
    (D > 128 ? ATTEND_ROW_THREADS_256 : D > 64 ? ATTEND_ROW_THREADS_128 : ATTEND_WIDE_THREADS) / kWarpSize;

// Scale of the weights, so that even small ones are normal f16.
constexpr float kWeightSteps = 16384.0f;

// Pitch of queries in bytes, in words.
template <int D>
constexpr uint32_t kBytesPitch = D / 4 + 4;

// Bytes per element of a query, and steps of each per step of the one before.
constexpr int kQueryBytes = 3;
constexpr float kByteSteps = 254.0f;

// The queries of a block as tensor core operands, in shared memory.
template <int D>
struct RowQueries {
    // Multiplied by a power of two and split into two f16.
    uint16_t high[ATTEND_ROW_HEADS * kPitch<D>], low[ATTEND_ROW_HEADS * kPitch<D>];
    // In 255 steps; then the remainder in 255 steps of 1 / 254 of those, and its remainder likewise. Words of
    // eight neighbouring heads are in different banks.
    uint32_t bytes[kQueryBytes][ATTEND_ROW_HEADS * kBytesPitch<D>];
    // Inverse of the power of two, and value of a step.
    float unscale[ATTEND_ROW_HEADS], step[ATTEND_ROW_HEADS];

    // Neighbouring lanes share a head; each takes whole words of four elements.
    DEVICE void load(const AttendCodesParams& p, const float* q, uint32_t heads) {
        constexpr uint32_t kLanes = D / 4 < kWarpSize ? D / 4 : kWarpSize, kWords = D / 4 / kLanes;
        const float factor = p.common.scale * 1.4426950408889634f;
        uint32_t lane = threadIdx.x % kLanes;
        for (uint32_t h = threadIdx.x / kLanes; h < ATTEND_ROW_HEADS; h += blockDim.x / kLanes) {
            float x[4 * kWords] = {};
            uint32_t largest = 0;
#pragma unroll
            for (uint32_t w = 0; w < kWords && h < heads; w++) {
                uint32_t elem = 4 * (w * kLanes + lane);
                float4 of_query = *reinterpret_cast<const float4*>(q + h * D + elem);
                float four[4] = {of_query.x, of_query.y, of_query.z, of_query.w};
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    float& to = x[4 * w + i];
                    to = four[i] * factor;
                    // As integers, the bits of magnitudes sort like floats, with NaN above everything.
                    largest = Max::of(largest, __float_as_uint(to) & 0x7fffffffu);
                }
            }
            largest = reduce_lanes<Max>(largest, int(kLanes));
            bool broken = largest >= 0x7f800000u;
            float most = __uint_as_float(largest), to_bytes = largest > 0 && !broken ? 127.0f / most : 0.0f;
            PowerOfTwo power = PowerOfTwo::of(largest);
#pragma unroll
            for (uint32_t w = 0; w < kWords; w++) {
                uint32_t word = w * kLanes + lane,
                    *to = reinterpret_cast<uint32_t*>(high + h * kPitch<D>) + 2 * word;
                uint32_t* to_low = reinterpret_cast<uint32_t*>(low + h * kPitch<D>) + 2 * word;
                float steps[4];
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) steps[i] = broken ? 0.0f : x[4 * w + i] * to_bytes;
#pragma unroll
                for (int byte = 0; byte < kQueryBytes; byte++) {
                    bytes[byte][h * kBytesPitch<D> + word] = bytes_of_floats(steps, 1.0f);
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) steps[i] = (steps[i] - rintf(steps[i])) * kByteSteps;
                }
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    float a = broken ? 0.0f : x[4 * w + 2 * i] * power.by,
                        b = broken ? 0.0f : x[4 * w + 2 * i + 1] * power.by;
                    to[i] = half2_bits(a, b);
                    float2 there = floats_of_half2(to[i]);
                    to_low[i] = half2_bits(a - there.x, b - there.y);
                }
            }
            if (lane == 0) {
                // A NaN or infinite query gives NaN.
                unscale[h] = broken ? NAN : power.back;
                step[h] = broken ? NAN : most / 127.0f;
            }
        }
    }
};

// A lane's place in the operands of its warp: rows `quartet` and `quartet + 8` of the accumulator, columns 2
// member + {0, 1}.
struct Place {
    uint32_t quartet, member;
    DEVICE explicit Place(uint32_t thread) : quartet(thread % kWarpSize / 4), member(thread % 4) {}
    DEVICE Place() : Place(threadIdx.x) {}
};

// Running result of a warp for its heads; a lane has two of them: 2 member + {0, 1}.
template <int D>
struct RowState {
    // Exponent that weights are relative to (log2 units), sum of the weights of the lane's positions, and
    // factor on the accumulated values when the next ones are added.
    float base[2], sum[2], by[2];
    // For elements quartet D / 8 + 2 i + e of head h, weighted values times kWeightSteps: [i][2 e + h].
    float values[D / 16][4];

    DEVICE RowState() : base{-INFINITY, -INFINITY}, sum{}, by{1.0f, 1.0f}, values{} {}

    // Adds the scores of positions quartet + {0, 8}, whose values have scales `steps`: [2 position + head].
    // Makes operands of weight times step, split into two f16.
    DEVICE void take(
        const float (&scores)[4], const float (&steps)[2], uint32_t (&high)[2], uint32_t (&low)[2]
    ) {
        float exponents[2] = {exponent_of(steps[0]), exponent_of(steps[1])};
#pragma unroll
        for (int head = 0; head < 2; head++) {
            float most = fmaxf(scores[head] + exponents[0], scores[2 + head] + exponents[1]);
            for (int mask = 4; mask < kWarpSize; mask *= 2)
                most = fmaxf(most, __shfl_xor_sync(kWarp, most, mask));
            most = fmaxf(most, base[head]);
            by[head] = rescale(base[head], most);
            base[head] = most;
            sum[head] *= by[head];
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float step = steps[half] * kWeightSteps, products[2];
#pragma unroll
            for (int head = 0; head < 2; head++) {
                float weight = exp2_fast(scores[2 * half + head] - base[head]);
                sum[head] += weight;
                products[head] = weight * step;
            }
            uint32_t two = half2_bits(products[0], products[1]);
            float2 there = floats_of_half2(two);
            high[half] = transpose_matrix(two);
            low[half] = transpose_matrix(half2_bits(products[0] - there.x, products[1] - there.y));
        }
    }

    // After take(), once for each eight: adds weighted values of the lane's elements 8 eight to 8 eight + 7.
    // `first` has those of positions 2 member + {0, 1}, and `second` those of 2 member + {8, 9}.
    DEVICE void add(
        uint32_t eight, const uint32_t (&first)[8], const uint32_t (&second)[8], const uint32_t (&high)[2],
        const uint32_t (&low)[2]
    ) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t a[4] = {first[2 * i], first[2 * i + 1], second[2 * i], second[2 * i + 1]};
            // Not accumulated on the tensor core, whose accumulators truncate towards zero.
            float part[4] = {};
            mma_f16_16x8x16(part, a, low);
            mma_f16_16x8x16(part, a, high);
#pragma unroll
            for (int e = 0; e < 4; e++)
                values[4 * eight + i][e] = fmaf(values[4 * eight + i][e], by[e % 2], part[e]);
        }
    }

    // Stores the warp's result for PagesTask::finish.
    DEVICE void leave() {
        // Recomputed, so that it is in no register until here.
        Place at(recomputed(threadIdx.x));
        uint32_t warp = threadIdx.x / kWarpSize;
        auto parts = parts_of_groups<ATTEND_ROW_HEADS>(kRowWarps<D>, D);
#pragma unroll
        for (int head = 0; head < 2; head++) {
            float all = sum[head];
            for (int mask = 4; mask < kWarpSize; mask *= 2) all += __shfl_xor_sync(kWarp, all, mask);
            if (at.quartet == 0) parts.soft(warp, 2 * at.member + head) = {base[head], all};
            float* to = parts.of(warp, 2 * at.member + head) + at.quartet * (D / 8);
#pragma unroll
            for (int i = 0; i < D / 8; i++) to[i] = values[i / 2][2 * (i % 2) + head] / kWeightSteps;
        }
    }
};

DEVICE uint32_t word_of(const uint4& words, int i) {
    return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// Adds 16 positions of an exact page, of which the row attends to those from `hidden` to n, at least one.
// Masked positions read the nearest visible one instead of uninitialised memory, with a score of -inf.
template <int D>
DEVICE void take_exact(
    RowState<D>& state, const RowQueries<D>& queries, const uint16_t* keys, const uint16_t* values,
    uint32_t first, uint32_t hidden, uint32_t n, float cap
) {
    Place at;
    auto read = [&](uint32_t place) { return (place < hidden ? hidden : place < n ? place : n - 1) * D; };
    const uint16_t* of_keys[2] = {keys + read(first + at.quartet), keys + read(first + at.quartet + 8)};
    float scores[4] = {};
#pragma unroll
    for (int s = 0; s < D / 32; s++) {
        uint32_t elem = 32 * s + 8 * at.member, of_query = at.quartet * kPitch<D> + elem;
        uint4 rows[2] = {load16(of_keys[0] + elem), load16(of_keys[1] + elem)};
        uint4 high = load16(queries.high + of_query), low = load16(queries.low + of_query);
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            uint32_t a[4] = {
                word_of(rows[0], i), word_of(rows[1], i), word_of(rows[0], i + 1), word_of(rows[1], i + 1)
            };
            uint32_t of_low[2] = {word_of(low, i), word_of(low, i + 1)},
                of_high[2] = {word_of(high, i), word_of(high, i + 1)};
            mma_f16_16x8x16(scores, a, of_low);
            mma_f16_16x8x16(scores, a, of_high);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t place = first + at.quartet + i / 2 * 8;
        bool seen = place - hidden < n - hidden;
        float score = capped_score(scores[i] * queries.unscale[2 * at.member + i % 2], cap);
        scores[i] = seen ? score : -INFINITY;
    }
    uint32_t high[2], low[2];
    state.take(scores, {1.0f, 1.0f}, high, low);
#pragma unroll
    for (int c = 0; c < D / 64; c++) {
        uint4 v[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            v[i] = load16(values +
                read(first + 2 * at.member + i % 2 + i / 2 * 8) + at.quartet * (D / 8) + 8 * c);
        }
        uint32_t pairs[2][8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t a = word_of(v[i / 4 * 2], i % 4), b = word_of(v[i / 4 * 2 + 1], i % 4);
            pairs[i / 4][2 * (i % 4)] = __byte_perm(a, b, 0x5410u);
            pairs[i / 4][2 * (i % 4) + 1] = __byte_perm(a, b, 0x7632u);
        }
        state.add(c, pairs[0], pairs[1], high, low);
    }
}

// Operands of byte products of a query: the bytes of head `quartet`.
template <int D>
DEVICE void load_operands(const uint32_t* bytes, uint32_t (&to)[D / 16]) {
    Place at(recomputed(threadIdx.x));
    load_words<D / 16>(bytes + at.quartet * kBytesPitch<D> + at.member * (D / 16), to);
}

// Means of the keys of 16 pages of codes as a warp loads them: a lane has D / 4 neighbouring elements of the
// means of two pages, those of its rows `quartet` and `quartet + 8`.
template <class C, int D>
struct PageMeans {
    uint32_t elems[2][D / 16];
    uint16_t scales[2];

    // Of NO_PAGE, loads zeros.
    DEVICE void load(const CodedKvParams& kv, const uint32_t (&pages)[2], uint32_t head) {
        *this = {};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (pages[half] == NO_PAGE) continue;
            MeanAt from = mean_at<C>(kv, pages[half], head);
            load_words<D / 16>(from.elems + Place(recomputed(threadIdx.x)).member * (D / 4), elems[half]);
            scales[half] = *from.scale();
        }
    }
    // Writes the products with the queries, [16, ATTEND_ROW_HEADS].
    DEVICE void multiply(const RowQueries<D>& queries, float* to) const {
        Place at(recomputed(threadIdx.x));
        int32_t sums[kQueryBytes][4] = {};
#pragma unroll
        for (int byte = 0; byte < kQueryBytes; byte++) {
            uint32_t of_query[D / 16];
            load_operands<D>(queries.bytes[byte], of_query);
#pragma unroll
            for (uint32_t i = 0; i < D / 16; i += 2) {
                uint32_t a[4] = {elems[0][i], elems[1][i], elems[0][i + 1], elems[1][i + 1]},
                    b[2] = {of_query[i], of_query[i + 1]};
                mma_s8_16x8x32(sums[byte], a, b);
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t head = 2 * at.member + i % 2;
            float sum = 0.0f;
#pragma unroll
            for (int byte = kQueryBytes - 1; byte >= 0; byte--)
                sum = fmaf(sum, 1.0f / kByteSteps, float(sums[byte][i]));
            to[(at.quartet + i / 2 * 8) * ATTEND_ROW_HEADS + head] =
                sum * (queries.step[head] * float_of_half(scales[i / 2]));
        }
    }
};

// A lane's share of a key in codes of K: D / 4 elements, from D / 64 pieces. Each piece is multiplied in two
// halves, whose products are summed separately. Specialised for keys in two groups (attend_groups.cuh).
template <class K, int D>
struct KeyShare {
    typename K::template Row<D / 64> row;

    DEVICE void load(const uint8_t* vector, uint32_t member) { row.load(vector, D / CODES_PIECE, member); }
    DEVICE void bytes(uint32_t piece, const CodedKvParams& kv, uint32_t (&out)[4]) const {
        K::bytes(row.piece(piece), kv.codes.table, out);
    }
    // Elements of a query that belong to it.
    DEVICE static void load_query(const uint32_t* bytes, uint32_t (&to)[D / 16]) {
        load_operands<D>(bytes, to);
    }
    // Value of one unit of a product of bytes with a query whose step is 1, but for the scale of the key.
    DEVICE static float unit(const CodedKvParams& kv) { return kv.codes.unit; }
};

// Operands of scores of codes of K: the bytes of head `quartet`, and of heads 2 member + {0, 1} the value of
// one unit of a product.
template <class K, int D>
struct ByteOperands {
    uint32_t bytes[D / 16];
    float step[2];

    DEVICE ByteOperands(const RowQueries<D>& queries, const CodedKvParams& kv) {
        KeyShare<K, D>::load_query(queries.bytes[0], bytes);
#pragma unroll
        for (int head = 0; head < 2; head++)
            step[head] = queries.step[2 * Place().member + head] * KeyShare<K, D>::unit(kv);
    }
};

// A lane's share of 16 positions of a page of codes.
template <class C, int D>
struct CodesTile {
    using K = typename C::Keys;
    using V = typename C::Values;
    static constexpr uint32_t kPieces = D / CODES_PIECE, kOfKey = kPieces / 4,
        kOfValue = kPieces > 8 ? kPieces / 8 : 1;

    KeyShare<K, D> key[2];
    typename V::template Row<kOfValue> value[4];
    uint16_t key_scales[2], value_scales[2];

    DEVICE void load(const CodedPage<K>& keys, const CodedPage<V>& values, uint32_t first) {
        Place at;
        uint32_t place = first + at.quartet;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint8_t* vector = keys.vector(D, place) + i * 8 * CodedPage<K>::vector_bytes(D);
            key[i].load(vector, at.member);
            key_scales[i] = keys.scale(place)[8 * i];
            value_scales[i] = values.scale(place)[8 * i];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint8_t* vector = values.vector(D, first + 2 * at.member)
                + (i % 2 + i / 2 * 8) * CodedPage<V>::vector_bytes(D);
            value[i].load(vector, kPieces, at.quartet * D / 8 / CODES_PIECE / kOfValue);
        }
    }
    // Products of the keys with queries, in two independent sums.
    DEVICE void multiply(const ByteOperands<K, D>& q, const CodedKvParams& kv, int32_t (&sums)[2][4]) const {
#pragma unroll
        for (uint32_t piece = 0; piece < kOfKey; piece++) {
            uint32_t bytes[2][4];
            key[0].bytes(piece, kv, bytes[0]);
            key[1].bytes(piece, kv, bytes[1]);
#pragma unroll
            for (uint32_t i = 0; i < 4; i += 2) {
                uint32_t a[4] = {bytes[0][i], bytes[1][i], bytes[0][i + 1], bytes[1][i + 1]};
                uint32_t b[2] = {q.bytes[4 * piece + i], q.bytes[4 * piece + i + 1]};
                mma_s8_16x8x32(sums[i / 2], a, b);
            }
        }
    }
};

// Adds 16 positions of a full page of codes; `of_mean` has the products of the queries with the page's mean.
// Calls load_next() as soon as `tile` is no longer needed, and hide(scores), which caps scores and sets those
// of masked positions to -inf (at least one position is visible).
template <class C, int D, class LoadNext, class Hide>
DEVICE void take_codes(
    RowState<D>& state, const ByteOperands<typename C::Keys, D>& q, const CodedKvParams& kv,
    const CodesTile<C, D>& tile, const float* of_mean, LoadNext load_next, Hide hide
) {
    using K = typename C::Keys;
    using V = typename C::Values;
    constexpr uint32_t kPieces = CodesTile<C, D>::kOfValue;
    int32_t sums[2][4] = {};
    tile.multiply(q, kv, sums);
    float scores[4], steps[2];
    if constexpr (K::kGroups) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            scores[i] = of_mean[2 * Place().member + i % 2];
#pragma unroll
            for (uint32_t group = 0; group < 2; group++) {
                float by = q.step[i % 2] * K::scale(D, tile.key_scales[i / 2], group);
                scores[i] = fmaf(float(sums[group][i]), by, scores[i]);
            }
        }
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            float by = q.step[i % 2] * float_of_half(tile.key_scales[i / 2]);
            scores[i] = fmaf(float(sums[0][i] + sums[1][i]), by, of_mean[2 * Place().member + i % 2]);
        }
    }
    typename V::Mixed mixed[kPieces][2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        steps[i] = float_of_half(tile.value_scales[i]);
#pragma unroll
        for (uint32_t piece = 0; piece < kPieces; piece++)
            mixed[piece][i] = V::mix(tile.value[2 * i].piece(piece), tile.value[2 * i + 1].piece(piece));
    }
    load_next();
    hide(scores);
    uint32_t high[2], low[2];
    state.take(scores, steps, high, low);
    // With D < 128 a lane has only half a piece.
    constexpr uint32_t kEights = D < 128 ? 1 : 2;
#pragma unroll
    for (uint32_t at = 0; at < kPieces * kEights; at++) {
        uint32_t pairs[2][8], which = D < 128 ? Place().quartet % 2 : at % 2;
#pragma unroll
        for (int i = 0; i < 2; i++) V::pairs(mixed[at / kEights][i], which, kv.codes.halves, pairs[i]);
        state.add(at, pairs[0], pairs[1], high, low);
    }
}

// Loads the block's queries into shared memory at `to`, [heads, head_dim]. In a step of one row they are
// rotated on the way, and the block with the newest page stores the row's key and value there and encodes the
// page if it is full, as `append` does in larger steps. Ends with a barrier.
template <class C, int D>
DEVICE void bring_row(const AttendCodesParams& p, const PagesTask<ATTEND_ROW_HEADS>& task, float* to) {
    uint32_t warp = threadIdx.x / kWarpSize;
    const float* q = p.common.q + task.first_head * D;
    if (!p.raw) {
        for (uint32_t at = threadIdx.x; at < task.heads * D; at += blockDim.x) to[at] = q[at];
        __syncthreads();
        return;
    }
    bool newest = task.split == task.splits - 1;
    auto appended = [&](uint32_t part) {
        return Appended{p.step, p.kv, p.raw, AppendRoom(D), task.r, task.kv_head, part, task.row};
    };
    if (newest && appended(0).fills_page()) {
#pragma unroll 1
        for (uint32_t part = 0; part < 2; part++) appended(part).template fill<C>();
        __syncthreads();
    }
    for (uint32_t i = warp; i < task.heads + 2 * newest; i += kRowWarps<D>) {
        bool of_query = i < task.heads;
        Appended it = appended(i - task.heads);
        Part part = of_query ? Part::kQuery : it.part == 0 ? Part::kKey : Part::kValue;
        Vector v = C::load(p.kv, of_query ? q + i * D : it.brought_raw(task.r), task.kv_head, part);
        if (of_query) {
            store_vector(v, to + i * D);
        } else {
            it.keep(v);
        }
    }
    __syncthreads();
}

template <class C, int D>
DEVICE void attend_row(const AttendCodesParams& p) {
    // The step's tables are uploaded before its first kernel starts.
    PagesTask<ATTEND_ROW_HEADS> task(p);
    uint32_t warp = threadIdx.x / kWarpSize;
    constexpr uint32_t kWarpsOfPage = PAGE_POSITIONS / kTilePositions, kStride = kRowWarps<D> / kWarpsOfPage;
    // Number of pages whose means are multiplied at a time, 16 per warp. The parts of the results need more
    // room than the products.
    constexpr uint32_t kMeans = 128;
    static_assert(kMeans <= kTilePositions * kRowWarps<D>, "no warp for some of the means");
    static_assert(sizeof(RowQueries<D>) + kMeans * ATTEND_ROW_HEADS * 4 <=
        kRowWarps<D> * ATTEND_ROW_HEADS * (2 + D) * 4, "no room for the products with means");
    uint32_t begin = task.first_page + warp / kWarpsOfPage, first = warp % kWarpsOfPage * kTilePositions;
    // Exact page of page i; then the page of codes if there is no exact one.
    auto exact = [&](uint32_t i) {
        return exact_page_for(p.kv, p.step, task.row.seq, task.n_positions, i);
    };
    // Pages that are codes and fully visible, as most are: n_inner pages from `inner` on.
    uint32_t window = window_page(p.kv, task.n_positions),
        end_coded = window < task.end_page ? window : task.end_page;
    uint32_t seen = (task.seen + PAGE_POSITIONS - 1) / PAGE_POSITIONS;
    uint32_t inner = seen < p.kv.sink_pages ? p.kv.sink_pages : seen;
    uint32_t n_inner = end_coded > inner ? end_coded - inner : 0;
    auto coded = [&](uint32_t i) {
        if (i - inner >= n_inner) {
            bool exists = i >= p.kv.sink_pages && i < end_coded;
            if (!exists || first + kTilePositions <= task.hidden(i)) return uint32_t(NO_PAGE);
        }
        return page_of(p.step, task.row.seq, i * PAGE_POSITIONS);
    };
    // First of the warp's pages from i on that can be exact.
    auto next_exact = [&](uint32_t i) {
        if (i < p.kv.sink_pages || i >= window) return i;
        return i + (window - i + kStride - 1) / kStride * kStride;
    };
    uint32_t begin_exact = next_exact(begin);
    // First page of codes, and the lane's share of those whose means are multiplied from page i on.
    uint32_t first_coded = task.first_page < p.kv.sink_pages ? p.kv.sink_pages : task.first_page;
    auto find_means = [&](uint32_t i, uint32_t (&pages)[2]) {
        uint32_t thread = recomputed(threadIdx.x);
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t own = i + kTilePositions * (thread / kWarpSize) + Place(thread).quartet + 8 * half;
            bool exists = own < end_coded;
            pages[half] = exists ? page_of(p.step, task.row.seq, own * PAGE_POSITIONS) : uint32_t(NO_PAGE);
        }
    };
    uint32_t page = NO_PAGE, page_of_next = NO_PAGE, first_exact = NO_PAGE, pages_of_means[2];
    if (task.exists) {
        find_means(first_coded, pages_of_means);
        if (begin_exact < task.end_page) first_exact = exact(begin_exact);
        page = coded(begin);
        // A page of codes is loaded while an exact one is multiplied.
        if (page == NO_PAGE) {
            begin += kStride;
            page = coded(begin);
        }
        page_of_next = coded(begin + kStride);
    }
    let_next_kernel_start();
    wait_for_previous_kernel();
    prefetch_next(p.step);
    if (!task.exists) return;
    CodesTile<C, D> tile;
    auto load = [&](uint32_t page) {
        if (page == NO_PAGE) return;
        tile.load(coded_keys<C>(p.kv, page, task.kv_head), coded_values<C>(p.kv, page, task.kv_head), first);
    };
    RowQueries<D>& queries = *reinterpret_cast<RowQueries<D>*>(shared_memory());
    float* floats = reinterpret_cast<float*>(shared_memory() + sizeof(RowQueries<D>));
    bring_row<C, D>(p, task, floats);
    load(page);
    PageMeans<C, D> means;
    means.load(p.kv, pages_of_means, task.kv_head);
    queries.load(p, floats, task.heads);
    __syncthreads();
    // Writes the products of the queries with the means of up to kMeans pages, [kMeans, ATTEND_ROW_HEADS],
    // over the queries as floats.
    auto multiply_means = [&](uint32_t i) {
        uint32_t own = kTilePositions * (recomputed(threadIdx.x) / kWarpSize);
        if (own < kMeans && i + own < end_coded) means.multiply(queries, floats + own * ATTEND_ROW_HEADS);
        __syncthreads();
    };
    multiply_means(first_coded);

    RowState<D> state;
#pragma unroll 1
    for (uint32_t i = begin_exact; i < task.end_page; i = next_exact(i + kStride)) {
        uint32_t at = i == begin_exact ? first_exact : exact(i), n = task.positions(i);
        uint32_t hidden = task.hidden(i);
        if (at == NO_PAGE || first >= n || first + kTilePositions <= hidden) continue;
        const uint16_t* keys = exact_head(p.kv, at, 0, task.kv_head);
        take_exact<D>(state, queries, keys, exact_head(p.kv, at, 1, task.kv_head), first, hidden, n,
            score_cap(p.common));
    }
    // While a page is multiplied, the codes of the warp's next page are loaded, and the page number of the
    // one after.
    ByteOperands<typename C::Keys, D> q(queries, p.kv);
    uint32_t i = begin, end = first_coded + kMeans;
    while (true) {
#pragma unroll 1
        for (; i < end && i < end_coded; i += kStride) {
            bool is_coded = page != NO_PAGE;
            auto load_next = [&] {
                load(page_of_next);
                page = page_of_next;
                page_of_next = coded(i + 2 * kStride);
            };
            auto hide = [&](float (&scores)[4]) {
                float cap = score_cap(p.common);
#pragma unroll
                for (uint32_t at = 0; at < 4; at++) scores[at] = capped_score(scores[at], cap);
                if (i - inner < n_inner) return;
                uint32_t hidden = task.hidden(i);
#pragma unroll
                for (uint32_t at = 0; at < 4; at++) {
                    if (first + Place().quartet + at / 2 * 8 < hidden) scores[at] = -INFINITY;
                }
            };
            if (is_coded) {
                const float* of_mean = floats + (i + kMeans - end) * ATTEND_ROW_HEADS;
                take_codes<C, D>(state, q, p.kv, tile, of_mean, load_next, hide);
            } else {
                load_next();
            }
        }
        if (end >= end_coded) break;
        find_means(end, pages_of_means);
        means.load(p.kv, pages_of_means, task.kv_head);
        __syncthreads();
        multiply_means(end);
        end += kMeans;
        // Again, so that they are in no registers meanwhile.
        q = ByteOperands<typename C::Keys, D>(queries, p.kv);
        tile = {};
        load(page);
    }
    __syncthreads();
    state.leave();
    task.finish(p, kRowWarps<D>, D, p.kv.codes, true);
}
