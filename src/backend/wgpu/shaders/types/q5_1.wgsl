// Q5_1: 32 5-bit integers with an f16 scale and an f16 offset, value = q x scale + offset.
//
// Three planes, each over all rows: the low 4 bits, 16 bytes per block; scale and offset, one word per block;
// the fifth bits, one word per block.
#include "lib/nibbles.wgsl"

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let blocks = #{w}.rows * params.w.chunks;
    let at = row * params.w.chunks + chunk;
    let low = bits_at(at);
    let line = unpack2x16float(word_at(blocks, at));
    let high = word_at(blocks + (blocks + 3u) / 4u, at);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        let q = nibbles(low, i) | (bits_of_quad(high, i) << 4u);
        values[i] = vec4<f32>(unpack4xU8(q)) * line.x + line.y;
    }
    return values;
}
