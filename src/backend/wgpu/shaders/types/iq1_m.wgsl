// IQ1_M: like IQ1_S, but with one sign of the 1/8 offset per 8 weights and one scale per 16.
//
// The codebook, then three planes, each over all rows: one word per group with the low 8 bits of its indices;
// 16 bits per group with the high three bits of its four indices, each below the sign of its offset; 8 bytes
// per block with four times 12 bits of scales, whose high four bits together are the block's f16 scale.
#include "lib/points.wgsl"

const BOOK: u32 = 256u;

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let groups = #{w}.rows * params.w.chunks;
    let at = row * params.w.chunks + chunk;
    let high_at = BOOK + vectors(4u * groups);
    let scales_at = high_at + vectors(2u * groups);
    let low = word_at(BOOK, at);
    let high = short_at(high_at, at);
    let first = word_at(scales_at, at / 8u * 2u);
    let second = word_at(scales_at, at / 8u * 2u + 1u);
    let bits = ((first >> 12u) & 0xfu) | ((first >> 24u) & 0xf0u) | ((second >> 4u) & 0xf00u)
        | ((second >> 16u) & 0xf000u);
    let scale = unpack2x16float(bits).x;
    let scales = short_at(scales_at, at / 8u * 4u + at % 8u / 2u) >> (at % 2u * 6u);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        let eight = i / 2u;
        let four = (high >> (4u * eight)) & 15u;
        let index = ((low >> (8u * eight)) & 255u) | ((four & 7u) << 8u);
        let integers = vec4<f32>(codes_of_two_bits(point(index) >> (8u * (i % 2u)))) - 1.0;
        let factor = 1.0 + 2.0 * f32((scales >> (i / 4u * 3u)) & 7u);
        values[i] = (integers + select(0.125, -0.125, (four & 8u) != 0u)) * (scale * factor);
    }
    return values;
}
