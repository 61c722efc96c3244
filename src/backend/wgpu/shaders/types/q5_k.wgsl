// Q5_K: 256 5-bit integers in 8 groups; value = q x group scale - group minimum.
//
// The layout is that of the file: 11 vectors of 16 bytes per block, a header, two of fifth bits (bit g of
// byte b belongs to element b of group g) and four pairs of groups.
#include "lib/k_groups.wgsl"

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let block = at / 4u * 11u;
    let pair = at % 4u;
    let header = bits_at(block);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var odd = 0u; odd < 2u; odd++) {
        let group = 2u * pair + odd;
        let line = scale_and_min(header, group);
        for (var part = 0u; part < 2u; part++) {
            let low = (bits_at(block + 3u + 2u * pair + part) >> vec4(4u * odd)) & vec4(0x0f0f0f0fu);
            let high = (bits_at(block + 1u + part) >> vec4(group)) & vec4(0x01010101u);
            let q = low | (high << vec4(4u));
            for (var i = 0u; i < 4u; i++) {
                values[8u * odd + 4u * part + i] = vec4<f32>(unpack4xU8(q[i])) * line.x - line.y;
            }
        }
    }
    return values;
}
