// Q5_0: 32 5-bit integers with one f16 scale, value = (q - 16) x scale.
//
// Three planes, each over all rows: the low 4 bits, 16 bytes per block; the fifth bits, one word per block;
// the scales.
#include "lib/nibbles.wgsl"

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let blocks = #{w}.rows * params.w.chunks;
    let at = row * params.w.chunks + chunk;
    let low = bits_at(at);
    let high = word_at(blocks, at);
    let scale = half_at(blocks + (blocks + 3u) / 4u, at);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        let q = nibbles(low, i) | (bits_of_quad(high, i) << 4u);
        values[i] = (vec4<f32>(unpack4xU8(q)) - 16.0) * scale;
    }
    return values;
}
