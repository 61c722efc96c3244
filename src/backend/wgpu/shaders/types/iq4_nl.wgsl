// IQ4_NL: 32 indices of unevenly spaced values with one f16 scale.
//
// Two planes, each over all rows: the indices, 16 bytes per block; the scales.
#include "lib/nibbles.wgsl"
#include "lib/uneven.wgsl"

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let bits = bits_at(at);
    let scale = half_at(#{w}.rows * params.w.chunks, at);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        values[i] = of_table(nibbles(bits, i)) * scale;
    }
    return values;
}
#if runs

fn load(row_at: u32, chunk: u32) -> Chunk {
    let at = row_at + chunk;
    return Chunk(bits_at(at), half_at(#{w}.rows * params.w.chunks, at));
}
#endif
