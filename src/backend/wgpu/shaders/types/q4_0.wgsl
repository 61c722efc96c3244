// Q4_0: 32 4-bit integers with one f16 scale, value = (q - 8) x scale.
//
// Blocks of 18 bytes prevent aligned loads, so the upload separates them into the integers of all rows,
// followed by all scales.
#include "lib/nibbles.wgsl"

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let bits = bits_at(at);
    let scale = half_at(#{w}.rows * params.w.chunks, at);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        values[i] = (vec4<f32>(unpack4xU8(nibbles(bits, i))) - 8.0) * scale;
    }
    return values;
}
#if runs

const HAS_MINIMUM = false;
const QUAD_SCALE = 1.0;

struct Chunk {
    bits: vec4<u32>,
    scale: f32,
}

fn load(row_at: u32, chunk: u32) -> Chunk {
    let at = row_at + chunk;
    return Chunk(bits_at(at), half_at(#{w}.rows * params.w.chunks, at));
}

fn quad(chunk: Chunk, i: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8(nibbles(chunk.bits, i))) - 8.0;
}

fn line_of(chunk: Chunk, run: u32) -> vec2<f32> {
    return vec2(chunk.scale, 0.0);
}
#endif
