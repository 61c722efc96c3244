// Append for caches of codes: rotates the queries, keys and values of a batch, writes keys and values to
// exact (f16) pages, and encodes the pages that the batch has filled.
//
// A block owns one batch row, one KV head, and its keys or its values: x = 2 KV head + part, z = row. A warp
// owns a vector at a time. Steps of one row do not launch it if attention runs on tensor cores: the blocks of
// attend_row.cuh call this code. The block of the row that fills a page encodes it. It rotates the batch's
// other vectors of that page again, because other blocks are storing them at the same time, and reads earlier
// ones from the page. Keys are encoded less the mean of the page's keys, which is stored in the page, with
// the bits of ggml-types/src/turboquant/mean.rs.
//
// Codes match lloyd.rs, prod.rs and split.rs in that folder, except where an element is within float rounding
// of a border. Trellis codes and their scales are those of trellis_vectors.rs to the bit: all warps of the
// block search for those of a page, in integers that replace it.
#pragma once

#include "../lib/codes.cuh"
#include "../lib/reduce.cuh"
#include "../lib/rotate.cuh"
#include "../lib/step.cuh"
#include "../lib/trellis_search.cuh"

struct AppendRoom {
    // [PAGE_POSITIONS]: the batch row that writes a position, or kNoRow.
    uint32_t* source;
    // [head_dim]: the mean of the keys, and what is stored of it.
    double* exact_mean;
    float* mean;
    // [PAGE_POSITIONS, head_dim] of f16.
    uint16_t* page;
    // [warps, head_dim]
    uint8_t* codes;
    // Instead of `codes`, if codes are searched for: groups of vectors, [2, PAGE_POSITIONS], and the room of
    // each warp.
    Searched* searched;
    uint32_t* search;

    DEVICE explicit AppendRoom(uint32_t head_dim) {
        source = reinterpret_cast<uint32_t*>(shared_memory());
        exact_mean = reinterpret_cast<double*>(source + PAGE_POSITIONS);
        mean = reinterpret_cast<float*>(exact_mean + head_dim);
        page = reinterpret_cast<uint16_t*>(mean + head_dim);
        codes = reinterpret_cast<uint8_t*>(page + PAGE_POSITIONS * head_dim);
        searched = reinterpret_cast<Searched*>(codes);
        search = reinterpret_cast<uint32_t*>(searched + 2 * PAGE_POSITIONS);
    }
};

constexpr uint32_t kNoRow = 0xffffffffu;

struct Appended {
    const StepTables& step;
    const CodedKvParams& kv;
    const float* raw;
    AppendRoom room;
    uint32_t r, head, part;
    StepRow row;

    DEVICE uint32_t head_dim() const { return kv.head_dim; }
    DEVICE uint32_t warp() const { return threadIdx.x / kWarpSize; }
    DEVICE uint32_t warps() const { return blockDim.x / kWarpSize; }

    // Key or value of a batch row, not rotated.
    DEVICE const float* brought_raw(uint32_t by) const {
        return raw + ((uint64_t(by) * 2 + part) * kv.n_kv_heads + head) * head_dim();
    }

    // Key or value of a batch row, rotated or in the basis of its head.
    template <class C>
    DEVICE Vector brought(uint32_t by) const {
        return C::load(kv, brought_raw(by), head, part == 0 ? Part::kKey : Part::kValue);
    }

    // f16 vectors of page i of the row's sequence.
    DEVICE uint16_t* exact(uint32_t i) const {
        return exact_head(kv, exact_page(step, row.seq, i), part, head);
    }

    // Finds the positions of page i that the batch writes, up to this row.
    DEVICE void find(uint32_t i) const {
        __syncthreads();
        for (uint32_t at = threadIdx.x; at < PAGE_POSITIONS; at += blockDim.x) room.source[at] = kNoRow;
        __syncthreads();
        for (uint32_t at = threadIdx.x; at <= r; at += blockDim.x) {
            StepRow other = step.rows[at];
            if (other.seq == row.seq && other.pos / PAGE_POSITIONS == i)
                room.source[other.pos % PAGE_POSITIONS] = at;
        }
        __syncthreads();
    }

    // Loads page i into `room.page`, after find(i).
    template <class C>
    DEVICE void load(uint32_t i) const {
        for (uint32_t pos = warp(); pos < PAGE_POSITIONS; pos += warps()) {
            uint16_t* to = room.page + pos * head_dim();
            if (room.source[pos] == kNoRow) {
                const uint16_t* from = exact(i) + pos * head_dim();
                for (uint32_t e = threadIdx.x % kWarpSize; e < head_dim(); e += kWarpSize) to[e] = from[e];
            } else {
                store_halves(brought<C>(room.source[pos]), to);
            }
        }
        __syncthreads();
    }

    // Stores a vector as f16. True if an element of the lane was clamped.
    DEVICE static bool store_halves(Vector v, uint16_t* to) {
        bool clamped = keep_within(v, kLargestHalf);
#pragma unroll
        for (uint32_t j = 0; j < kLaneElems; j++) {
            if (j < v.n) to[Vector::elem(j)] = half_bits(v.x[j]);
        }
        return clamped;
    }

    // Stores the mean of the keys in `room.page`, as int8 under one scale, and writes its elements to
    // `room.mean`.
    DEVICE void take_mean(const MeanAt& to) const {
        uint32_t thread = threadIdx.x, threads = blockDim.x;
        for (uint32_t e = thread; e < head_dim(); e += threads) {
            double sum = 0.0;
            for (uint32_t pos = 0; pos < PAGE_POSITIONS; pos++)
                sum += double(float_of_half(room.page[pos * head_dim() + e]));
            room.exact_mean[e] = sum / PAGE_POSITIONS;
        }
        __syncthreads();
        double most = 0.0;
        for (uint32_t e = thread % kWarpSize; e < head_dim(); e += kWarpSize)
            most = Max::of(most, fabs(room.exact_mean[e]));
        most = reduce_lanes<Max>(most, kWarpSize);
        uint16_t bits = half_bits(float(most / 127.0));
        float scale = float_of_half(bits);
        for (uint32_t e = thread; e < head_dim(); e += threads) {
            double steps = scale > 0.0f ? round(room.exact_mean[e] / double(scale)) : 0.0;
            // A tiny scale is rounded by up to half of itself.
            float within = fminf(fmaxf(float(steps), -127.0f), 127.0f);
            to.elems[e] = uint8_t(int32_t(within));
            room.mean[e] = scale * within;
        }
        uint16_t* words = to.scale();
        for (uint32_t at = thread; at < (MeanAt::bytes(head_dim()) - head_dim()) / 2; at += threads)
            words[at] = at == 0 ? bits : uint16_t(0);
        __syncthreads();
    }

    // Cell of a magnitude among kHalf. Borders belong to the cell above; for negative elements, to the cell
    // nearer to 0.
    template <uint32_t kHalf>
    DEVICE static uint32_t cell_of(float size, bool negative, const float* borders) {
        uint32_t cell = 0;
#pragma unroll
        for (uint32_t b = 1; b < kHalf; b++) cell += negative ? size > borders[b] : size >= borders[b];
        return cell;
    }

    // Quantises a vector of length 1 / unit: writes its codes of kBits to `codes`, and the dequantised
    // elements to `c`.
    template <uint32_t kBits>
    DEVICE static void quantise(const Vector& y, float unit, const Book& book, uint8_t* codes, Vector& c) {
        constexpr uint32_t kHalf = 1u << (kBits - 1);
        c.n = y.n;
#pragma unroll
        for (uint32_t j = 0; j < kLaneElems; j++) {
            c.x[j] = 0.0f;
            if (j >= y.n) continue;
            float size = fabsf(y.x[j]) * unit;
            bool negative = y.x[j] < 0.0f;
            uint32_t cell = cell_of<kHalf>(size, negative, book.borders);
            codes[Vector::elem(j)] = uint8_t(negative ? kHalf - 1 - cell : kHalf + cell);
            c.x[j] = negative ? -book.magnitudes[cell] : book.magnitudes[cell];
        }
    }

    // Stores the scales (and signs) of a vector y whose codes dequantise to c.
    template <class C>
    DEVICE void finish(
        const CodedPage<C>& to, uint32_t pos, const Vector& y, const Vector& c, float squares
    ) const {
        bool first_lane = threadIdx.x % kWarpSize == 0;
        if constexpr (C::kScales == 1) {
            // Keys use the scale that makes inner products unbiased, values the one with the smallest error.
            float along = 0.0f, code_squares = 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < kLaneElems; j++) {
                along = fmaf(y.x[j], c.x[j], along);
                code_squares = fmaf(c.x[j], c.x[j], code_squares);
            }
            along = reduce_lanes<Sum>(along, kWarpSize);
            code_squares = reduce_lanes<Sum>(code_squares, kWarpSize);
            float scale = squares == 0.0f ? 0.0f : part == 0 ? squares / along : along / code_squares;
            count_clamped(kv.clamped, scale > kLargestHalf);
            if (first_lane) *to.scale(pos) = scale_bits(scale);
        } else {
            // The norm, and the residual relative to the norm as stored.
            uint16_t norm_bits = scale_bits(sqrtf(squares));
            float norm = float_of_half(norm_bits), left = 0.0f;
            Vector residual;
            residual.n = y.n;
#pragma unroll
            for (uint32_t j = 0; j < kLaneElems; j++) {
                residual.x[j] = fmaf(-norm, c.x[j], y.x[j]);
                left = fmaf(residual.x[j], residual.x[j], left);
            }
            left = reduce_lanes<Sum>(left, kWarpSize);
            count_clamped(kv.clamped, sqrtf(squares) > kLargestHalf || sqrtf(left) > kLargestHalf);
            C::pack_signs(to.vector(head_dim(), pos), head_dim(), residual);
            if (first_lane) {
                *to.scale(pos, 0) = norm_bits;
                *to.scale(pos, 1) = scale_bits(sqrtf(left));
            }
        }
    }

    // Writes the codes of a key in two groups to `codes`, and stores its scales.
    template <class C>
    DEVICE void encode_groups(
        const CodedPage<C>& to, uint32_t pos, const Vector& y, uint8_t* codes
    ) const {
        const SplitParams& params = C::params(head_dim());
        auto in_second = [&](uint32_t j) { return Vector::elem(j) >= head_dim() / 2; };
        float squares[2] = {}, along[2] = {}, unit[2];
#pragma unroll
        for (uint32_t j = 0; j < kLaneElems; j++) {
            if (j >= y.n) continue;
            squares[0] += in_second(j) ? 0.0f : y.x[j] * y.x[j];
            squares[1] += in_second(j) ? y.x[j] * y.x[j] : 0.0f;
        }
#pragma unroll
        for (uint32_t group = 0; group < 2; group++) {
            squares[group] = reduce_lanes<Sum>(squares[group], kWarpSize);
            unit[group] = squares[group] > 0.0f ? 1.0f / sqrtf(squares[group]) : 0.0f;
        }
#pragma unroll
        for (uint32_t j = 0; j < kLaneElems; j++) {
            if (j >= y.n) continue;
            bool second = in_second(j), negative = y.x[j] < 0.0f;
            const GroupParams& group = params.groups[second];
            float size = fabsf(y.x[j]) * (second ? unit[1] : unit[0]);
            uint32_t cell = cell_of<8>(size, negative, group.borders);
            codes[Vector::elem(j)] = uint8_t(negative ? group.half - 1 - cell : group.half + cell);
            float product = size * group.magnitudes[cell];
            along[0] += second ? 0.0f : product;
            along[1] += second ? product : 0.0f;
        }
        uint32_t scales = 0;
        bool clamped = false;
#pragma unroll
        for (uint32_t group = 0; group < 2; group++) {
            // The scale that makes inner products unbiased, |y|^2 / <y, c>, with y as a unit vector.
            along[group] = reduce_lanes<Sum>(along[group], kWarpSize);
            float scale = squares[group] > 0.0f ? sqrtf(squares[group]) / along[group] : 0.0f;
            scales |= C::code_of_scale(params, group, scale, clamped) << (8 * group);
        }
        count_clamped(kv.clamped, clamped);
        if (threadIdx.x % kWarpSize == 0) *to.scale(pos) = uint16_t(scales);
    }

    // A vector of `room.page`, of keys less `room.mean`.
    DEVICE Vector vector_of_page(uint32_t pos) const {
        Vector y;
        y.n = head_dim() / kWarpSize;
#pragma unroll
        for (uint32_t j = 0; j < kLaneElems; j++) {
            y.x[j] = 0.0f;
            if (j >= y.n) continue;
            y.x[j] = float_of_half(room.page[pos * head_dim() + Vector::elem(j)]);
            if (part == 0) y.x[j] -= room.mean[Vector::elem(j)];
        }
        return y;
    }

    // Replaces the vectors of `room.page` by integers: those of each group have the magnitude 2^10 to 2^11.
    DEVICE void to_integers() const {
        for (uint32_t pos = warp(); pos < PAGE_POSITIONS; pos += warps()) {
            Vector y = vector_of_page(pos);
            // Values are one group.
            auto in_second = [&](uint32_t j) { return part == 0 && Vector::elem(j) >= head_dim() / 2; };
            float most[2] = {}, factors[2];
            uint32_t squares[2] = {};
            int32_t exponents[2];
#pragma unroll
            for (uint32_t j = 0; j < kLaneElems; j++) {
                // Elements past the end are 0.
                most[0] = fmaxf(most[0], in_second(j) ? 0.0f : fabsf(y.x[j]));
                most[1] = fmaxf(most[1], in_second(j) ? fabsf(y.x[j]) : 0.0f);
            }
#pragma unroll
            for (uint32_t group = 0; group < 2; group++) {
                most[group] = reduce_lanes<Max>(most[group], kWarpSize);
                // Differences of f16 and of products with an f16 are 0 or normal.
                int32_t exponent = int32_t(__float_as_uint(most[group]) >> 23) - 127;
                exponents[group] = most[group] == 0.0f ? 0 : 10 - exponent;
                factors[group] = __uint_as_float(uint32_t(127 + exponents[group]) << 23);
            }
#pragma unroll
            for (uint32_t j = 0; j < kLaneElems; j++) {
                if (j >= y.n) continue;
                bool second = in_second(j);
                int32_t q = int32_t(rintf(y.x[j] * (second ? factors[1] : factors[0])));
                squares[0] += second ? 0u : uint32_t(q * q);
                squares[1] += second ? uint32_t(q * q) : 0u;
                room.page[pos * head_dim() + Vector::elem(j)] = uint16_t(int16_t(q));
            }
#pragma unroll
            for (uint32_t group = 0; group < 2; group++) {
                squares[group] = reduce_lanes<Sum>(squares[group], kWarpSize);
                if (threadIdx.x % kWarpSize == 0)
                    room.searched[group * PAGE_POSITIONS + pos] = {exponents[group], squares[group], 0, 0, 0};
            }
        }
        __syncthreads();
        uint32_t n_groups = part == 0 ? 2 : 1;
        for (uint32_t at = threadIdx.x; at < n_groups * PAGE_POSITIONS; at += blockDim.x)
            room.searched[at].find_factor(head_dim() / n_groups);
        __syncthreads();
    }

    // Searches for the codes of a group of all vectors; the warps take turns from the first one on. Returns
    // the number of turns.
    template <uint32_t kBits, uint32_t kWindow>
    DEVICE uint32_t search(uint32_t group, uint32_t first_turn) const {
        using Search = PathSearch<kBits, kWindow>;
        constexpr uint32_t kTurns = PAGE_POSITIONS / Search::kVectors;
        uint32_t n = part == 0 ? head_dim() / 2 : head_dim(), warps = this->warps();
        Search search(kv.trellis->tables, SearchRoom(room.search + warp() * SearchRoom::words(head_dim())));
        uint32_t begin = (warp() + warps - first_turn % warps) % warps;
#pragma unroll 1
        for (uint32_t turn = begin; turn < kTurns; turn += warps) {
            uint32_t pos = turn * Search::kVectors + threadIdx.x % kWarpSize / Search::kStates;
            uint16_t* q = room.page + pos * head_dim() + group * n;
            search.find(q, n, room.searched[group * PAGE_POSITIONS + pos]);
        }
        return kTurns;
    }

    // The nearest f16 of a scale that is not negative, or the largest; and whether it is above that.
    DEVICE static uint16_t half_of_scale(double scale, bool& clamped) {
        // Rounded to odd first, which keeps ties of the second rounding apart.
        uint32_t bits = __float_as_uint(float(scale));
        if (double(__uint_as_float(bits)) > scale) bits--;
        if (double(__uint_as_float(bits)) != scale) bits |= 1;
        uint16_t half = half_bits(__uint_as_float(bits));
        clamped = half >= 0x7c00u;
        return clamped ? uint16_t(0x7bffu) : half;
    }

    // The code of the scale of a group of a key, with the given one for the scale 1: LogScale of split.rs.
    DEVICE static uint32_t log_of_scale(double scale, int32_t one, bool& clamped) {
        if (!(scale > 0.0)) return 0;
        double code = round(double(kScaleSteps) * log2(scale)) + one;
        clamped = clamped || code > 255.0;
        return code <= 1.0 - kScaleSteps ? 0u : code < 1.0 ? 1u : code > 255.0 ? 255u : uint32_t(code);
    }

    // Encodes the page in `room.page` as trellis codes, keys less `room.mean`.
    template <class C>
    DEVICE void encode_searched(const CodedPage<C>& to) const {
        to_integers();
        if constexpr (C::kGroups) {
            search<2, 6>(1, search<4, 8>(0, 0));
        } else {
            search<3, 6>(0, 0);
        }
        __syncthreads();
        for (uint32_t pos = threadIdx.x; pos < PAGE_POSITIONS; pos += blockDim.x) {
            bool clamped = false;
            if constexpr (C::kGroups) {
                uint32_t scales = 0;
#pragma unroll
                for (uint32_t group = 0; group < 2; group++) {
                    const Searched& of = room.searched[group * PAGE_POSITIONS + pos];
                    // The scale that makes inner products unbiased.
                    uint32_t code = log_of_scale(of.scale(of.square, of.along),
                        group == 0 ? TRELLIS_ONE_FIRST : TRELLIS_ONE_SECOND, clamped);
                    scales |= code << (8 * group);
                }
                *to.scale(pos) = uint16_t(scales);
            } else {
                // The scale with the smallest error.
                const Searched& of = room.searched[pos];
                uint32_t along = of.along > 0 ? uint32_t(of.along) : 0u;
                *to.scale(pos) = half_of_scale(of.scale(along, of.code_square), clamped);
            }
            if (clamped) atomicAdd(reinterpret_cast<unsigned long long*>(kv.clamped), 1ull);
        }
        uint32_t n_pieces = head_dim() / CODES_PIECE;
        for (uint32_t at = threadIdx.x; at < PAGE_POSITIONS * n_pieces; at += blockDim.x) {
            uint32_t pos = at / n_pieces, piece = at % n_pieces;
            C::pack(to.vector(head_dim(), pos), n_pieces, piece, room.page + at * CODES_PIECE);
        }
        __syncthreads();
    }

    // Encodes the page in `room.page` as codes, keys less `room.mean`.
    template <class C>
    DEVICE void encode(const CodedPage<C>& to, const Book& book) const {
        uint32_t n_pieces = head_dim() / CODES_PIECE;
        uint8_t* codes = room.codes + warp() * head_dim();
        for (uint32_t pos = warp(); pos < PAGE_POSITIONS; pos += warps()) {
            Vector y = vector_of_page(pos), c;
            float squares = 0.0f;
#pragma unroll
            for (uint32_t j = 0; j < kLaneElems; j++) {
                if (j < y.n) squares = fmaf(y.x[j], y.x[j], squares);
            }
            squares = reduce_lanes<Sum>(squares, kWarpSize);
            __syncwarp();
            if constexpr (C::kGroups) {
                encode_groups(to, pos, y, codes);
            } else {
                float unit = squares > 0.0f ? 1.0f / sqrtf(squares) : 0.0f;
                quantise<C::kBits>(y, unit, book, codes, c);
                finish(to, pos, y, c, squares);
            }
            __syncwarp();
            for (uint32_t at = threadIdx.x % kWarpSize; at < n_pieces; at += kWarpSize) {
                C::pack(to.vector(head_dim(), pos), n_pieces, at, codes + at * CODES_PIECE);
            }
            __syncwarp();
        }
    }

    // Stores the row's rotated vector in its exact page; a warp calls it.
    DEVICE void keep(const Vector& v) const {
        uint16_t* to = exact(row.pos / PAGE_POSITIONS) + row.pos % PAGE_POSITIONS * head_dim();
        count_clamped(kv.clamped, store_halves(v, to));
    }

    DEVICE bool fills_page() const { return row.pos % PAGE_POSITIONS == PAGE_POSITIONS - 1; }

    // Encodes the page that the row fills. The first pages are always read exactly, never from codes.
    template <class C>
    DEVICE void fill() const {
        uint32_t i = row.pos / PAGE_POSITIONS;
        if (i < kv.sink_pages) return;
        find(i);
        load<C>(i);
        uint32_t page = page_of(step, row.seq, row.pos);
        if (part == 0) {
            take_mean(mean_at<C>(kv, page, head));
            Book book = {};
            if constexpr (!C::Keys::kGroups) book = C::key_book(kv);
            if constexpr (C::Keys::kSearched) {
                encode_searched(coded_keys<C>(kv, page, head));
            } else {
                encode(coded_keys<C>(kv, page, head), book);
            }
        } else if constexpr (C::Values::kSearched) {
            encode_searched(coded_values<C>(kv, page, head));
        } else {
            encode(coded_values<C>(kv, page, head), value_book(kv));
        }
    }

    // Clamps to the largest f16.
    DEVICE static uint16_t scale_bits(float scale) { return half_bits(fminf(scale, kLargestHalf)); }
};

template <class C>
DEVICE void append(const AppendParams& p) {
    let_next_kernel_start();
    wait_for_previous_kernel();
    uint32_t r = blockIdx.z;
    if (r >= p.step.counts->rows) return;
    uint32_t head_dim = p.kv.head_dim, head = blockIdx.x / 2, part = blockIdx.x % 2;
    Appended it{p.step, p.kv, p.raw, AppendRoom(head_dim), r, head, part, p.step.rows[r]};

    if (p.raw && it.warp() == 0) it.keep(it.template brought<C>(r));
    if (part == 0) {
        for (uint32_t h = it.warp(); h < p.group; h += it.warps()) {
            float* q = p.q + ((uint64_t(r) * p.kv.n_kv_heads + head) * p.group + h) * head_dim;
            store_vector(C::load(p.kv, q, head, Part::kQuery), q);
        }
    }
    if (p.raw && it.fills_page()) it.template fill<C>();
}
