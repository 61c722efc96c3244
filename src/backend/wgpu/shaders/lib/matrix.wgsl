// A part of a weight: rows first_row .. first_row + rows of it.
//
// Its type is in types/, one file each, which defines a chunk of a row, the piece that one thread decodes at
// a time: CHUNK_QUADS, `place` (which columns a chunk has) and `decode`; where products are of integers,
// `codes` too.
struct Matrix {
    rows: u32,
    first_row: u32,
    chunks: u32,
    // The tensor's own factor, which only I2_S has.
    scale: f32,
}

#if experts
// Where the part of the workgroup's expert begins, in vectors of 16 bytes.
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

// The i-th word behind a vector of the part, and the i-th half.
fn word_at(base: u32, i: u32) -> u32 {
    return bits_at(base + i / 4u)[i % 4u];
}

fn half_at(base: u32, i: u32) -> f32 {
    return unpack2x16float(word_at(base, i / 2u))[i % 2u];
}

#include "types/" ~ type ~ ".wgsl"
