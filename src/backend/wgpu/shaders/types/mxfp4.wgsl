// MXFP4: 32 4-bit floats with a power of two as scale, whose exponent is a byte.
//
// Two planes, each over all rows: the floats, 16 bytes per block; the exponents, one byte per block.
#include "lib/nibbles.wgsl"

// Twice the value of each code.
const TABLE: vec4<u32> = vec4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);
#include "lib/table.wgsl"

// Half the power of two that a byte encodes; 2^-128 and 2^-127 are subnormal.
fn half_power(exponent: u32) -> f32 {
    return bitcast<f32>(select((exponent - 1u) << 23u, 0x200000u << exponent, exponent < 2u));
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let bits = bits_at(at);
    let four = word_at(#{w}.rows * params.w.chunks, at / 4u);
    let scale = half_power((four >> (8u * (at % 4u))) & 255u);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        values[i] = of_table(nibbles(bits, i)) * scale;
    }
    return values;
}
