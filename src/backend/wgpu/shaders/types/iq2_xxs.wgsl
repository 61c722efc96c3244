// IQ2_XXS: 8 weights are one of 256 points and seven signs; value = group scale x block scale x integer.
//
// The codebook, then two planes, each over all rows: 8 bytes per group, four indices and a word with four
// times seven signs below the group's 4-bit scale; one f16 scale per block.
#include "lib/points.wgsl"

const BOOK: u32 = 32u;

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let groups = #{w}.rows * params.w.chunks;
    let at = row * params.w.chunks + chunk;
    let indices = word_at(BOOK, 2u * at);
    let signs = word_at(BOOK, 2u * at + 1u);
    let scale = half_at(BOOK + vectors(8u * groups), at / 8u) * ((f32(signs >> 28u) + 0.5) / 4.0);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        let eight = i / 2u;
        let codes = point((indices >> (8u * eight)) & 255u) >> (8u * (i % 2u));
        let minuses = even(signs >> (7u * eight)) >> (4u * (i % 2u));
        values[i] = magnitudes(codes) * signs_of(minuses) * scale;
    }
    return values;
}
