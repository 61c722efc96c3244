// NVFP4: 64 4-bit floats in groups of 16, each with an 8-bit scale: 4 bits of exponent, 3 of mantissa.
//
// Two planes, each over all rows: the floats, 8 bytes per group, its first 8 floats in the low nibbles; one
// word per block, its four scales. A chunk is two groups.
const CHUNK_QUADS: u32 = 8u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return 8u * chunk + i;
}

// Twice the value of each code.
const TABLE: vec4<u32> = vec4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);
#include "lib/table.wgsl"

// Half the value of a scale; the largest code, 0x7f, means 0.
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
    let four = word_at(#{w}.rows * params.w.chunks, at / 2u) >> (16u * (at % 2u));
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        // Per group: the low nibbles of two words, then their high nibbles.
        let group = i / 4u;
        let codes = (bits[2u * group + i % 2u] >> (4u * (i / 2u % 2u))) & 0x0f0f0f0fu;
        values[i] = of_table(codes) * half_scale((four >> (8u * group)) & 255u);
    }
    return values;
}
