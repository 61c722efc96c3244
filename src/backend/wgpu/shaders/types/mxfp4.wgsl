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
#if runs

const HAS_MINIMUM = false;
// Twice 2^14, since the scale is half the power of two.
const QUAD_SCALE = 32768.0;

struct Chunk {
    bits: vec4<u32>,
    scale: f32,
}

fn load(row_at: u32, chunk: u32) -> Chunk {
    let at = row_at + chunk;
    let four = word_at(#{w}.rows * params.w.chunks, at / 4u);
    return Chunk(bits_at(at), half_power((four >> (8u * (at % 4u))) & 255u));
}

// Sign, exponent and fraction of a code are those bits of the f16 that is 2^-14 times its value, which may be
// subnormal.
fn quad(chunk: Chunk, i: u32) -> vec4<f32> {
    let word = chunk.bits[i % 4u] >> (i / 4u * 4u);
    let even = unpack2x16float(((word << 9u) & 0x0e000e00u) | ((word << 12u) & 0x80008000u));
    let odd = unpack2x16float(((word << 1u) & 0x0e000e00u) | ((word << 4u) & 0x80008000u));
    return vec4(even.x, odd.x, even.y, odd.y);
}

fn line_of(chunk: Chunk, run: u32) -> vec2<f32> {
    return vec2(chunk.scale, 0.0);
}
#endif
