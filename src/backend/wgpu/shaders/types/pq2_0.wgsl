// PQ2_0: Q2_0 with blocks of 128. PTQ1_0 is unpacked to it during upload.
//
// Two planes, each over all rows: the codes, 32 bytes per block; the scales. A chunk is half a block.
#include "lib/pairs.wgsl"

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let scale = half_at(#{w}.rows * params.w.chunks, at / 2u);
    return of_pairs(bits_at(at), scale);
}
