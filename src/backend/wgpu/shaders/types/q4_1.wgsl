// Q4_1: 32 4-bit integers with an f16 scale and an f16 offset, value = q x scale + offset.
//
// Two planes, each over all rows: the integers, 16 bytes per block; scale and offset, one word per block.
#include "lib/nibbles.wgsl"

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let bits = bits_at(at);
    let line = unpack2x16float(word_at(#{w}.rows * params.w.chunks, at));
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        values[i] = vec4<f32>(unpack4xU8(nibbles(bits, i))) * line.x + line.y;
    }
    return values;
}
