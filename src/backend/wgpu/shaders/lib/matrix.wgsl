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

// The i-th half behind a place in the weights.
fn half_at(base: u32, i: u32) -> f32 {
    return unpack2x16float(weights[base + i / 8u][i / 2u % 4u])[i % 2u];
}

#include "types/" ~ type ~ ".wgsl"
