// IQ3_XXS: 4 weights are one of 256 points, and 8 have seven signs; value = group scale x block scale x
// integer.
//
// The codebook, then two planes, each over all rows: 96 bytes per block, its 64 indices and one word per
// group with four times seven signs below the group's 4-bit scale; one f16 scale per block.
#include "lib/points.wgsl"

const BOOK: u32 = 32u;

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let blocks = #{w}.rows * params.w.chunks / 8u;
    let at = row * params.w.chunks + chunk;
    let block = at / 8u;
    let group = at % 8u;
    let signs = word_at(BOOK, 24u * block + 16u + group);
    let scale = half_at(BOOK + 6u * blocks, block) * ((f32(signs >> 28u) + 0.5) / 2.0);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        let code = codes_of_four_bits(point(byte_at(BOOK, 96u * block + 8u * group + i)));
        // 4, 12, 20, 28, 36, 44, 52 and 62.
        let integers = vec4<f32>(4u + 8u * code + (code / vec4(7u)) * 2u);
        let minuses = even(signs >> (7u * (i / 2u))) >> (4u * (i % 2u));
        values[i] = integers * signs_of(minuses) * scale;
    }
    return values;
}
