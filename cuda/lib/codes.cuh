// Vectors of Lloyd-Max codes: layout of a piece (16 neighbouring elements), and its conversion to bytes or
// f16.
//
// A code plugin has kBits (of a code), kVectorBits (per element of a stored vector), kScales (per vector),
// and
//
//   load    reads a piece
//   pack    stores 16 codes of a vector of n_pieces pieces
//   bytes   converts a piece to four words by look-ups with __byte_perm: element 4 i + b in byte b of word i
//   Query   further data of a query that its products need, besides its bytes
//
// Plugins for tensor cores also have
//
//   Row     N neighbouring pieces as loaded, from row N on
//   halves  converts a piece to eight words of f16
//   mix     interleaves the pieces of two positions
//   pairs   converts elements 8 eight .. 8 eight + 7 of a mix to words of two f16, the first position low
//
// The plugin of a codec names two code plugins, Keys and Values, and has
//
//   key_book   the codebook of keys, unless they are in two groups (kGroups, lib/split.cuh)
//   key_table  the table of a piece of a key
//   load       loads a vector of the step and transforms it
//
// A code is the number of quantiser borders at
// or below the element, so the upper half of the codes is positive.
#pragma once

#include "../params.h"
#include "../simt.h"
#include "rotate.cuh"
#include "step.cuh"

// Steps of the logarithm of an 8-bit scale per octave.
constexpr float kScaleSteps = 30.0f;

// Packs the low two bits of 16 codes: those of element 4 g + n start at bit 16 (g / 2) + 4 n + 2 (g % 2), so
// that a shift and a mask give a __byte_perm selector of four elements.
DEVICE uint32_t pack_low(const uint8_t* codes) {
    uint32_t low = 0;
    for (uint32_t g = 0; g < 4; g++) {
        for (uint32_t n = 0; n < 4; n++)
            low |= (codes[4 * g + n] & 3u) << (16 * (g / 2) + 4 * n + 2 * (g % 2));
    }
    return low;
}

DEVICE uint32_t select_low(uint32_t low, uint32_t g) {
    return low >> (16 * (g / 2) + 2 * (g % 2)) & 0x3333u;
}

// Bits of `a` where `mask` is 1, of `b` elsewhere; written so that it compiles to one LOP3.
DEVICE uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b) { return ((a ^ b) & mask) ^ b; }

// Interleaves nibbles of two words, those of `a` low: the even nibbles of each, or the odd ones.
DEVICE uint32_t mix_nibbles(uint32_t a, uint32_t b, uint32_t odd) {
    return choose_bits(0x0f0f0f0fu, odd ? a >> 4 : a, odd ? b : b << 4);
}

// Two words of f16 from four low and four high bytes.
DEVICE void join_bytes(uint32_t low, uint32_t high, uint32_t& first, uint32_t& second) {
    first = __byte_perm(low, high, 0x5140u);
    second = __byte_perm(low, high, 0x7362u);
}

// Loads N neighbouring words, aligned to their size.
template <int N>
DEVICE void load_words(const void* at, uint32_t (&to)[N]) {
    static_assert(N == 1 || N == 2 || N % 4 == 0, "sizes that one load has");
    if constexpr (N == 1) {
        to[0] = *static_cast<const uint32_t*>(at);
    } else if constexpr (N == 2) {
        uint2 two = *static_cast<const uint2*>(at);
        to[0] = two.x;
        to[1] = two.y;
    } else {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            uint4 four = load16(static_cast<const uint32_t*>(at) + i);
            to[i] = four.x;
            to[i + 1] = four.y;
            to[i + 2] = four.z;
            to[i + 3] = four.w;
        }
    }
}

// A codebook: borders between magnitudes (the first is 0), magnitudes, and the dequantised codes as bytes, in
// steps of `unit`.
struct Book {
    const float *borders, *magnitudes;
    const uint32_t* table;
    float unit;
};

DEVICE Book value_book(const CodedKvParams& kv) {
    return {kv.codes.borders, kv.codes.magnitudes, kv.codes.table, kv.codes.unit};
}

// 3-bit codes: a vector is n_pieces words with the low two bits (as pack_low), then n_pieces half words with
// the top bits: that of element 4 g + n of a piece is bit 4 n + g. A shift and a mask give a selector of four
// elements.
struct Codes3 {
    static constexpr uint32_t kBits = 3, kVectorBits = 3, kScales = 1;
    static constexpr bool kGroups = false, kSearched = false;
    struct Query {};
    struct Piece {
        uint32_t low;
        uint16_t top;
    };

    DEVICE static Piece load(const uint8_t* vector, uint32_t n_pieces, uint32_t piece) {
        return {
            reinterpret_cast<const uint32_t*>(vector)[piece],
            reinterpret_cast<const uint16_t*>(vector + 4 * n_pieces)[piece],
        };
    }

    template <int N>
    struct Row {
        uint32_t low[N], tops[(N + 1) / 2];

        DEVICE void load(const uint8_t* vector, uint32_t n_pieces, uint32_t row) {
            load_words<N>(vector + 4 * N * row, low);
            const uint8_t* at = vector + 4 * n_pieces + 2 * N * row;
            if constexpr (N == 1) {
                tops[0] = *reinterpret_cast<const uint16_t*>(at);
            } else {
                load_words<N / 2>(at, tops);
            }
        }
        DEVICE Piece piece(int i) const { return {low[i], uint16_t(tops[i / 2] >> (16 * (i % 2)))}; }
    };

    DEVICE static void pack(uint8_t* vector, uint32_t n_pieces, uint32_t piece, const uint8_t* codes) {
        uint32_t top = 0;
        for (uint32_t g = 0; g < 4; g++) {
            for (uint32_t n = 0; n < 4; n++) top |= uint32_t(codes[4 * g + n] >> 2) << (4 * n + g);
        }
        reinterpret_cast<uint32_t*>(vector)[piece] = pack_low(codes);
        reinterpret_cast<uint16_t*>(vector + 4 * n_pieces)[piece] = uint16_t(top);
    }

    // Selectors for a piece: elements 4 g + n in the lower half of word g, elements 4 (g + 2) + n in the
    // upper half.
    DEVICE static void selectors(uint32_t low, uint32_t top, uint32_t (&out)[2]) {
        // Both shifts write the bits of n = 3, which no selector uses.
        uint32_t tops = top << 2 | top << 16;
#pragma unroll
        for (uint32_t g = 0; g < 2; g++) out[g] = (low >> (2 * g) & 0x33333333u) | (tops >> g & 0x44444444u);
    }

    DEVICE static void bytes(const Piece& piece, const uint32_t (&table)[2], uint32_t (&out)[4]) {
        uint32_t select[2];
        selectors(piece.low, piece.top, select);
#pragma unroll
        for (uint32_t g = 0; g < 4; g++)
            out[g] = __byte_perm(table[0], table[1], select[g % 2] >> (16 * (g / 2)));
    }

    DEVICE static void halves(const Piece& piece, const uint32_t (&halves)[4], uint32_t (&out)[8]) {
        uint32_t low[4], high[4];
        bytes(piece, {halves[0], halves[1]}, low);
        bytes(piece, {halves[2], halves[3]}, high);
#pragma unroll
        for (uint32_t g = 0; g < 4; g++) join_bytes(low[g], high[g], out[2 * g], out[2 * g + 1]);
    }

    // Selectors of the even and of the odd elements.
    struct Mixed {
        uint32_t select[2][2];
    };

    DEVICE static Mixed mix(const Piece& a, const Piece& b) {
        Mixed out;
#pragma unroll
        for (uint32_t odd = 0; odd < 2; odd++)
            selectors(mix_nibbles(a.low, b.low, odd), mix_nibbles(a.top, b.top, odd), out.select[odd]);
        return out;
    }

    DEVICE static void pairs(
        const Mixed& mixed, uint32_t eight, const uint32_t (&halves)[4], uint32_t (&out)[8]
    ) {
#pragma unroll
        for (uint32_t odd = 0; odd < 2; odd++) {
#pragma unroll
            for (uint32_t g = 0; g < 2; g++) {
                uint32_t selector = mixed.select[odd][g] >> (16 * eight);
                uint32_t bytes[2] = {
                    __byte_perm(halves[0], halves[1], selector), __byte_perm(halves[2], halves[3], selector)
                };
                join_bytes(bytes[0], bytes[1], out[4 * g + odd], out[4 * g + odd + 2]);
            }
        }
    }
};

// 4-bit codes: a vector is n_pieces pairs of words, element 4 g + n of a piece at bit 16 g + 4 n.
struct Codes4 {
    static constexpr uint32_t kBits = 4, kVectorBits = 4, kScales = 1;
    static constexpr bool kGroups = false, kSearched = false;
    struct Query {};
    using Piece = uint2;

    DEVICE static Piece load(const uint8_t* vector, uint32_t, uint32_t piece) {
        return reinterpret_cast<const uint2*>(vector)[piece];
    }

    template <int N>
    struct Row {
        uint32_t words[2 * N];

        DEVICE void load(const uint8_t* vector, uint32_t, uint32_t row) {
            load_words<2 * N>(vector + 8 * N * row, words);
        }
        DEVICE Piece piece(int i) const { return {words[2 * i], words[2 * i + 1]}; }
    };

    DEVICE static void pack(uint8_t* vector, uint32_t, uint32_t piece, const uint8_t* codes) {
        uint32_t words[2] = {};
        for (uint32_t i = 0; i < 16; i++) words[i / 8] |= uint32_t(codes[i]) << (4 * (i % 8));
        reinterpret_cast<uint2*>(vector)[piece] = {words[0], words[1]};
    }

    // The table has the upper half; the lower half is its mirror image with opposite sign.
    DEVICE static void bytes(const Piece& piece, const uint32_t (&table)[2], uint32_t (&out)[4]) {
        bytes_of_eight(piece.x, table, out[0], out[1]);
        bytes_of_eight(piece.y, table, out[2], out[3]);
    }

    DEVICE static void bytes_of_eight(
        uint32_t word, const uint32_t (&table)[2], uint32_t& first, uint32_t& second
    ) {
#pragma unroll
        for (uint32_t g = 0; g < 2; g++) {
            uint32_t codes = word >> (16 * g) & 0xffffu, lower = ~codes >> 3 & 0x1111u;
            uint32_t positive = __byte_perm(table[0], table[1], (codes & 0x7777u) ^ (lower * 7));
            uint32_t minus = __byte_perm(0xff00u, 0, lower);
            (g == 0 ? first : second) = (positive ^ minus) + (minus & 0x01010101u);
        }
    }

    DEVICE static void halves(const Piece& piece, const uint32_t (&halves)[4], uint32_t (&out)[8]) {
        uint32_t words[2] = {piece.x, piece.y};
#pragma unroll
        for (uint32_t g = 0; g < 4; g++) {
            uint32_t codes = words[g / 2] >> (16 * (g % 2)) & 0xffffu, lower = ~codes >> 3 & 0x1111u;
            uint32_t selector = (codes & 0x7777u) ^ (lower * 7);
            uint32_t high = __byte_perm(halves[2], halves[3], selector) ^ __byte_perm(0x8000u, 0, lower);
            join_bytes(__byte_perm(halves[0], halves[1], selector), high, out[2 * g], out[2 * g + 1]);
        }
    }

    // Even and odd elements of each eight.
    struct Mixed {
        uint32_t codes[2][2];
    };

    DEVICE static Mixed mix(const Piece& a, const Piece& b) {
        Mixed out;
#pragma unroll
        for (uint32_t odd = 0; odd < 2; odd++) {
            out.codes[0][odd] = mix_nibbles(a.x, b.x, odd);
            out.codes[1][odd] = mix_nibbles(a.y, b.y, odd);
        }
        return out;
    }

    DEVICE static void pairs(
        const Mixed& mixed, uint32_t eight, const uint32_t (&halves)[4], uint32_t (&out)[8]
    ) {
#pragma unroll
        for (uint32_t odd = 0; odd < 2; odd++) {
            uint32_t codes = eight ? mixed.codes[1][odd] : mixed.codes[0][odd],
                lower = ~codes >> 3 & 0x11111111u;
            uint32_t magnitudes = (codes & 0x77777777u) ^ (lower * 7);
#pragma unroll
            for (uint32_t g = 0; g < 2; g++) {
                uint32_t selector = magnitudes >> (16 * g) & 0xffffu;
                uint32_t signs = __byte_perm(0x8000u, 0, lower >> (16 * g) & 0xffffu);
                uint32_t high = __byte_perm(halves[2], halves[3], selector) ^ signs;
                join_bytes(__byte_perm(halves[0], halves[1], selector), high,
                    out[4 * g + odd], out[4 * g + odd + 2]);
            }
        }
    }
};

// Addresses of one head's mean of keys in a page of codes: [head_dim] of int8, an f16 scale, and zeros up to
// 16 bytes (ggml-types/src/turboquant/mean.rs). The scales and codes of the keys follow.
struct MeanAt {
    uint8_t* elems;
    uint32_t head_dim;

    DEVICE static uint32_t bytes(uint32_t head_dim) { return (head_dim + 2 + 15) / 16 * 16; }
    DEVICE uint16_t* scale() const { return reinterpret_cast<uint16_t*>(elems + head_dim); }
};

// Addresses of the vectors of one head in a page of codes; all keys come before the values.
template <class C>
struct CodedPage {
    uint8_t* scales;

    DEVICE static uint32_t vector_bytes(uint32_t head_dim) { return C::kVectorBits * head_dim / 8; }
    DEVICE static uint64_t head_bytes(uint32_t head_dim) {
        return PAGE_POSITIONS * uint64_t(2 * C::kScales + vector_bytes(head_dim));
    }
    DEVICE uint16_t* scale(uint32_t place, uint32_t which = 0) const {
        return reinterpret_cast<uint16_t*>(scales) + which * PAGE_POSITIONS + place;
    }
    DEVICE uint8_t* vector(uint32_t head_dim, uint32_t place) const {
        return scales + PAGE_POSITIONS * 2 * C::kScales + place * vector_bytes(head_dim);
    }
};

// Mean that was subtracted from the keys of a page of codes.
template <class C>
DEVICE MeanAt mean_at(const CodedKvParams& kv, uint32_t page, uint32_t head) {
    uint64_t head_bytes = MeanAt::bytes(kv.head_dim) + CodedPage<typename C::Keys>::head_bytes(kv.head_dim);
    return {kv.pages + page * kv.page_bytes + head * head_bytes, kv.head_dim};
}

template <class C>
DEVICE CodedPage<typename C::Keys> coded_keys(const CodedKvParams& kv, uint32_t page, uint32_t head) {
    return {mean_at<C>(kv, page, head).elems + MeanAt::bytes(kv.head_dim)};
}

template <class C>
DEVICE CodedPage<typename C::Values> coded_values(const CodedKvParams& kv, uint32_t page, uint32_t head) {
    uint8_t* after_keys = mean_at<C>(kv, page, kv.n_kv_heads).elems;
    return {after_keys + head * CodedPage<typename C::Values>::head_bytes(kv.head_dim)};
}

// A vector of the step: a key, a value or a query.
enum class Part { kKey, kValue, kQuery };

// Loads a vector and rotates it. All lanes of a warp call it.
DEVICE Vector load_rotated(const CodedKvParams& kv, const float* from) {
    Vector v = load_vector(from, kv.head_dim);
    rotate(v, kv.codes);
    return v;
}

// Loads a key or a query in the basis of its KV head; `factor` is that of the rotation of a group. All lanes
// of a warp call it.
DEVICE Vector load_in_basis(
    const CodedKvParams& kv, const float* from, uint32_t head, Part part, float factor
) {
    const KeyPlace* places = kv.bases + head * kv.head_dim;
    Vector v;
    v.n = kv.head_dim / kWarpSize;
#pragma unroll
    for (uint32_t j = 0; j < kLaneElems; j++) {
        v.x[j] = 0.0f;
        if (j >= v.n) continue;
        KeyPlace place = places[Vector::elem(j)];
        v.x[j] = from[place.elem] * (part == Part::kQuery ? place.of_query : place.of_key);
    }
    // The vector may be stored where it was.
    __syncwarp();
    hadamard<true>(v);
#pragma unroll
    for (uint32_t j = 0; j < kLaneElems; j++) v.x[j] *= factor;
    return v;
}

// Keys and values in the same codes.
template <class C>
struct Alike {
    using Keys = C;
    using Values = C;
    DEVICE static Book key_book(const CodedKvParams& kv) { return value_book(kv); }
    DEVICE static void key_table(const CodedKvParams& kv, uint32_t, uint32_t, uint32_t (&to)[2]) {
        to[0] = kv.codes.table[0];
        to[1] = kv.codes.table[1];
    }
    DEVICE static Vector load(const CodedKvParams& kv, const float* from, uint32_t, Part) {
        return load_rotated(kv, from);
    }
};

// f16 vectors of one head in an exact page, [PAGE_POSITIONS, head_dim].
DEVICE uint16_t* exact_head(const CodedKvParams& kv, uint32_t exact, uint32_t part, uint32_t head) {
    return kv.exact + ((uint64_t(exact) * 2 + part) * kv.n_kv_heads + head) * PAGE_POSITIONS * kv.head_dim;
}

// Exact page of page i of a sequence, or NO_PAGE.
DEVICE uint32_t exact_page(const StepTables& step, uint32_t seq, uint32_t i) {
    return step.exact[seq * step.pages_stride + i];
}

// First page that a row with n_positions reads from an exact page because it is recent, if there is one.
DEVICE uint32_t window_page(const CodedKvParams& kv, uint32_t n_positions) {
    uint32_t newest = n_positions / PAGE_POSITIONS;
    return newest > kv.newest_pages ? newest - kv.newest_pages : 0;
}

// Exact page that a row with n_positions reads instead of the codes of page i, or NO_PAGE.
DEVICE uint32_t exact_page_for(
    const CodedKvParams& kv, const StepTables& step, uint32_t seq, uint32_t n_positions, uint32_t i
) {
    return i < kv.sink_pages || i >= window_page(kv, n_positions) ? exact_page(step, seq, i) : NO_PAGE;
}

// Page of codes that such a row reads as page i, or NO_PAGE.
DEVICE uint32_t coded_page_for(
    const CodedKvParams& kv, const StepTables& step, uint32_t seq, uint32_t n_positions, uint32_t i
) {
    if (exact_page_for(kv, step, seq, n_positions, i) != NO_PAGE) return NO_PAGE;
    return page_of(step, seq, i * PAGE_POSITIONS);
}
