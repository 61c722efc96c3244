// Octets: OCTET_ROWS rows of weights by OCTET_COLS columns, stored together. The octets of eight rows follow
// each other; those of the next eight rows come after them. Rows past the last one are 0.
//
// An octet begins with runs of 256 bytes, 32 bytes of each row: 32 columns of a byte each, or four bits of 64
// columns, of which block_codes.cuh reads a word per lane. Columns past the last one have scales of 0. The 32
// bytes of a row are two pieces of 16, which rows 4 to 7 have in reverse order: so the words that a warp's
// lanes read from one piece of eight rows are in different banks of shared memory. The rest of an octet
// (scales, further bits) is the type's own.
#pragma once

#include "../params_octets.h"
#include "../simt.h"
#include "input.cuh"

constexpr uint32_t kRunBytes = 256;

// True if the codes of two neighbouring blocks of columns are the nibbles of the same bytes, and types of the
// same kernels without further bits exist. Products of octets (linear_octets.cuh) use the high ones in place,
// 16 times as large, with scales that are 1/16 of theirs.
template <class T>
constexpr bool kNibbles = false;

DEVICE void store4(float* to, float a, float b, float c, float d) {
    *reinterpret_cast<float4*>(to) = make_float4(a, b, c, d);
}

// A row of weights in octets: its first octet, and its place in it.
struct OctetRow {
    const uint8_t* octets;
    uint32_t row;

    // Offset of piece t (0 or 1) of run `run` in an octet.
    DEVICE uint32_t piece(uint32_t run, uint32_t t) const {
        return run * kRunBytes + row * 32 + (t ^ row / 4) * 16;
    }
};

