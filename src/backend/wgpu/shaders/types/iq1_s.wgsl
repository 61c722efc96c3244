// IQ1_S: 8 weights are one of 2048 points with integers -1, 0 and 1, and all of a group are offset by 1/8;
// value = group scale x block scale x (integer +- 1/8).
//
// The codebook, then three planes, each over all rows: one word per group with the low 8 bits of its indices;
// 16 bits per group with the high three bits of its four indices, three bits of scale, and the sign of the
// offset; one f16 scale per block.
#include "lib/points.wgsl"

const BOOK: u32 = 256u;

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let groups = #{w}.rows * params.w.chunks;
    let at = row * params.w.chunks + chunk;
    let high_at = BOOK + vectors(4u * groups);
    let low = word_at(BOOK, at);
    let high = short_at(high_at, at);
    let factor = 1.0 + 2.0 * f32((high >> 12u) & 7u);
    let scale = half_at(high_at + vectors(2u * groups), at / 8u) * factor;
    let eighth = select(0.125, -0.125, (high & 0x8000u) != 0u);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        let eight = i / 2u;
        let index = ((low >> (8u * eight)) & 255u) | (((high >> (3u * eight)) & 7u) << 8u);
        let integers = vec4<f32>(codes_of_two_bits(point(index) >> (8u * (i % 2u)))) - 1.0;
        values[i] = (integers + eighth) * scale;
    }
    return values;
}
