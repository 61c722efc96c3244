// Q2_K: 256 2-bit integers in 16 groups; value = q x group scale - group minimum.
//
// Two planes, each over all rows: 5 vectors of 16 bytes per block, the groups' 4-bit scales (low) and
// minimums (high), then the integers; one word per block, the f16 scale of the scales and that of the
// minimums.
#include "lib/halves.wgsl"

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let block = at / 4u;
    let part = at % 4u;
    let groups = bits_at(5u * block);
    let bits = bits_at(5u * block + 1u + part);
    let of_block = unpack2x16float(word_at(5u * #{w}.rows * (params.w.chunks / 4u), block));
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var shift = 0u; shift < 4u; shift++) {
        let group = part / 2u * 8u + 2u * shift + part % 2u;
        let byte = groups[group / 4u] >> (8u * (group % 4u));
        let line = of_block * vec2<f32>(vec2(byte, byte >> 4u) & vec2(15u));
        let q = (bits >> vec4(2u * shift)) & vec4(0x03030303u);
        for (var i = 0u; i < 4u; i++) {
            values[4u * shift + i] = vec4<f32>(unpack4xU8(q[i])) * line.x - line.y;
        }
    }
    return values;
}
