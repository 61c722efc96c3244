// Pages of a KV cache in blocks: BLOCK_ELEMS elements under one f16 scale (q8_0, q4_0), or plain f16 for the
// side (keys or values) that is not quantised.
//
// A page holds the keys of every KV head, then the values of every KV head. Each head has PAGE_POSITIONS x
// head_dim / BLOCK_ELEMS scales, then PAGE_POSITIONS vectors; f16 has no scales. The form of a side comes
// from the parameters, so it is the same for all threads. In a q8_0 vector, element e is byte e. In a q4_0
// vector, a piece of 16 elements is two words: element 4 g + n is in byte n of word g / 2, in the high nibble
// if g is odd; its value is the nibble minus 8.
#pragma once

#include "../params.h"
#include "../simt.h"
#include "halves.cuh"

// Addresses of the vectors of one head in a page: part 0 is keys, 1 values.
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
    // f16 uses all of it, q8_0 the first four words, q4_0 the first two.
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

    // The elements as bytes: signed for q8_0, 0 to 15 for q4_0. Element 4 i + b is in byte b of word i.
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

    // The elements as floats, without the scale.
    DEVICE void floats(uint32_t form, float (&out)[CODES_PIECE]) const {
        if (form == BLOCKS_HALVES) {
            floats_of_halves(bits, out);
            return;
        }
        // 2^23 + byte has the byte in its lowest bits; signed bytes are offset by 128.
        uint32_t words[4], high = form == BLOCKS_Q8_0 ? 0x80808080u : 0u;
        float less = form == BLOCKS_Q8_0 ? 8388736.0f : 8388616.0f;
        bytes(form, words);
#pragma unroll
        for (uint32_t e = 0; e < CODES_PIECE; e++) {
            out[e] = __uint_as_float(__byte_perm(words[e / 4] ^ high, 0x4b000000u, 0x7540u + e % 4)) - less;
        }
    }
};
