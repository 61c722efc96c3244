// IQ3_S: 4 weights are one of 512 points, each with a sign; value = group scale x block scale x integer.
//
// The codebook, then five planes, each over all rows: 8 bytes per group, the low 8 bits of its indices; one
// word per group, its signs; one byte per group, the ninth bits; one word per block, the 4-bit scales of its
// groups; one f16 scale per block.
#include "lib/points.wgsl"

const BOOK: u32 = 64u;

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let groups = #{w}.rows * params.w.chunks;
    let at = row * params.w.chunks + chunk;
    let signs_at = BOOK + vectors(8u * groups);
    let high_at = signs_at + vectors(4u * groups);
    let scales_at = high_at + vectors(groups);
    let signs = word_at(signs_at, at);
    let high = byte_at(high_at, at);
    let factor = f32((word_at(scales_at, at / 8u) >> (4u * (at % 8u))) & 15u);
    let scale = half_at(scales_at + vectors(groups / 2u), at / 8u) * (1.0 + 2.0 * factor);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        let index = byte_at(BOOK, 8u * at + i) | (((high >> i) & 1u) << 8u);
        let integers = vec4<f32>(1u + 2u * codes_of_four_bits(point(index)));
        values[i] = integers * signs_of(signs >> (4u * i)) * scale;
    }
    return values;
}
