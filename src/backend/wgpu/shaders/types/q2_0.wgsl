// Q2_0: 64 2-bit codes with one f16 scale; ternary weights, and code 3 is twice the scale.
//
// Two planes, each over all rows: the codes, 16 bytes per block; the scales.
#include "lib/pairs.wgsl"

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let scale = half_at(#{w}.rows * params.w.chunks, at);
    return of_pairs(bits_at(at), scale);
}
