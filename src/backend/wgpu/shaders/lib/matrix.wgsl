// A part of a weight: its rows first_row .. first_row + rows.
//
// Each type has a file in types/, which defines a chunk of a row, the piece that one thread decodes at a
// time: CHUNK_QUADS, `place` (the columns of a chunk) and `decode`; with integer products, `codes` too.
//
// For products of few rows (`runs`), a type may define how codes are multiplied before their scale: `Chunk`
// and `load` (what is loaded of a chunk), `quad` (four codes as floats), and `line_of` (scale and minimum of
// a run of quads). A value is scale x QUAD_SCALE x code - minimum; without HAS_MINIMUM there is none. An
// offset that all codes of a type share is subtracted in `quad`: as a minimum it would cost bits of the sum.
struct Matrix {
    rows: u32,
    first_row: u32,
    chunks: u32,
    // Scale of the tensor, only for I2_S.
    scale: f32,
}

#if experts or heads or adapters or layers
// Offset of the part of the workgroup's expert, head, adapter or layer, in vectors of 16 bytes.
var<private> part_at: u32;

// The i-th vector of 16 bytes of the part.
fn bits_at(i: u32) -> vec4<u32> {
    return weights[part_at + i];
}
#else
// The i-th vector of 16 bytes of the part.
fn bits_at(i: u32) -> vec4<u32> {
    return weights[i];
}
#endif

// The i-th word after vector `base` of the part; `half_at` is the i-th f16.
fn word_at(base: u32, i: u32) -> u32 {
    return bits_at(base + i / 4u)[i % 4u];
}

fn half_at(base: u32, i: u32) -> f32 {
    return unpack2x16float(word_at(base, i / 2u))[i % 2u];
}

#include "types/" ~ type ~ ".wgsl"
