// Cached vectors in blocks of BLOCK_ELEMS elements under one scale each, and halves for the side of a cache
// that has no blocks.
//
// Of a page, the keys of each KV head and then the values of each: PAGE_POSITIONS x head_dim / BLOCK_ELEMS
// scales as halves, then as many vectors as positions; halves have no scales. Which form a side has is read
// from the parameters, and is the same for all threads. In a vector of q8_0, element e is byte e. In one of
// q4_0, a piece of 16 elements is two words: element 4 g + n is in byte n of word g / 2, in the high half
// where g is odd; it stands for the number less 8.
#pragma once

#include "../params.h"
#include "../simt.h"
#include "halves.cuh"

// Where the vectors of one head lie: part 0 are keys, 1 values.
struct BlockPage {
    uint8_t* scales;
    uint8_t* vectors;
    uint32_t form, vector_bytes, blocks;

    DEVICE static uint32_t vector_bytes_of(uint32_t form, uint32_t head_dim) {
        return form == BLOCKS_HALVES ? 2 * head_dim : form == BLOCKS_Q8_0 ? head_dim : head_dim / 2;
    }
    DEVICE static uint32_t blocks_of(uint32_t form, uint32_t head_dim) {
        return form == BLOCKS_HALVES ? 0 : head_dim / BLOCK_ELEMS;
    }
    DEVICE static uint64_t head_bytes(uint32_t form, uint32_t head_dim) {
        return PAGE_POSITIONS * uint64_t(vector_bytes_of(form, head_dim) + 2 * blocks_of(form, head_dim));
    }
    DEVICE BlockPage(const BlockKvParams& kv, uint32_t page, uint32_t part, uint32_t head) {
        form = kv.forms[part];
        vector_bytes = vector_bytes_of(form, kv.head_dim);
        blocks = blocks_of(form, kv.head_dim);
        scales = kv.pages + page * kv.page_bytes + head * head_bytes(form, kv.head_dim);
        if (part == 1) scales += kv.n_kv_heads * head_bytes(kv.forms[0], kv.head_dim);
        vectors = scales + PAGE_POSITIONS * 2 * blocks;
    }
    DEVICE uint16_t* scale(uint32_t place, uint32_t block) const {
        return reinterpret_cast<uint16_t*>(scales) + place * blocks + block;
    }
    DEVICE uint8_t* vector(uint32_t place) const { return vectors + place * vector_bytes; }
};

// A piece of CODES_PIECE elements of a vector.
struct BlockPiece {
    // Halves take all of it, q8_0 the first four words, q4_0 two of these.
    uint4 bits[2];
    uint16_t scale;

    DEVICE void load(const BlockPage& page, uint32_t place, uint32_t piece) {
        const uint8_t* vector = page.vector(place);
        if (page.form == BLOCKS_HALVES) {
            bits[0] = load16(vector + piece * 32);
            bits[1] = load16(vector + piece * 32 + 16);
            return;
        }
        scale = *page.scale(place, piece * CODES_PIECE / BLOCK_ELEMS);
        if (page.form == BLOCKS_Q8_0) {
            bits[0] = load16(vector + piece * 16);
        } else {
            uint2 two = *reinterpret_cast<const uint2*>(vector + piece * 8);
            bits[0].x = two.x;
            bits[0].y = two.y;
        }
    }

    // As bytes: with a sign in q8_0, from 0 to 15 in q4_0. Element 4 i + b is in byte b of word i.
    DEVICE void bytes(uint32_t form, uint32_t (&out)[4]) const {
        if (form == BLOCKS_Q8_0) {
            out[0] = bits[0].x;
            out[1] = bits[0].y;
            out[2] = bits[0].z;
            out[3] = bits[0].w;
            return;
        }
        out[0] = bits[0].x & 0x0f0f0f0fu;
        out[1] = bits[0].x >> 4 & 0x0f0f0f0fu;
        out[2] = bits[0].y & 0x0f0f0f0fu;
        out[3] = bits[0].y >> 4 & 0x0f0f0f0fu;
    }

    // As numbers, without the scale.
    DEVICE void floats(uint32_t form, float (&out)[CODES_PIECE]) const {
        if (form == BLOCKS_HALVES) {
            floats_of_halves(bits, out);
            return;
        }
        // 2^23 + byte has the byte in its last place; bytes with a sign come 128 higher.
        uint32_t words[4], high = form == BLOCKS_Q8_0 ? 0x80808080u : 0u;
        float less = form == BLOCKS_Q8_0 ? 8388736.0f : 8388616.0f;
        bytes(form, words);
#pragma unroll
        for (uint32_t e = 0; e < CODES_PIECE; e++) {
            out[e] = __uint_as_float(__byte_perm(words[e / 4] ^ high, 0x4b000000u, 0x7540u + e % 4)) - less;
        }
    }
};
