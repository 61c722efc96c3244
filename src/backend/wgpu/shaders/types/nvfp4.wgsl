// NVFP4: 64 floats of 4 bits in groups of 16, each under a scale of 8 bits: 4 of exponent, 3 of mantissa.
//
// Two planes, each over all rows: the floats, 8 bytes a group, the first 8 of it in the low halves; a word a
// block, its four scales. A chunk is two groups.
const CHUNK_QUADS: u32 = 8u;

// Quad (4 neighbouring columns) of the row that the i-th of a chunk is.
fn place(chunk: u32, i: u32) -> u32 {
    return 8u * chunk + i;
}

// Twice what each code stands for.
const TABLE: vec4<u32> = vec4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);
#include "lib/table.wgsl"

// Half of what a scale stands for; the largest code but for the sign stands for 0.
fn half_scale(code: u32) -> f32 {
    let exponent = (code >> 3u) & 15u;
    let mantissa = code & 7u;
    let usual = bitcast<f32>(((exponent + 119u) << 23u) | (mantissa << 20u));
    let small = f32(mantissa) / 1024.0;
    return select(select(usual, small, exponent == 0u), 0.0, code == 0x7fu);
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let bits = bits_at(at);
    let four = word_at(params.w.rows * params.w.chunks, at / 2u) >> (16u * (at % 2u));
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        // Of each group: the low halves of two words, then their high halves.
        let group = i / 4u;
        let codes = (bits[2u * group + i % 2u] >> (4u * (i / 2u % 2u))) & 0x0f0f0f0fu;
        values[i] = of_table(codes) * half_scale((four >> (8u * group)) & 255u);
    }
    return values;
}
