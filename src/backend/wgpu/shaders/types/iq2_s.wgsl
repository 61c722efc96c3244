// IQ2_S: 8 weights are one of 1024 points and eight signs; value = scale of 16 x block scale x integer.
//
// The codebook, then three planes, each over all rows: 64 bytes per block, the low 8 bits of its indices and
// the signs of its weights; 16 bytes per block, one byte per group with the high two bits of its four
// indices, then one byte per group with the 4-bit scales of its halves; one f16 scale per block.
#include "lib/points.wgsl"

const BOOK: u32 = 128u;

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let blocks = #{w}.rows * params.w.chunks / 8u;
    let at = row * params.w.chunks + chunk;
    let block = at / 8u;
    let group = at % 8u;
    let low = word_at(BOOK, 16u * block + group);
    let signs = word_at(BOOK, 16u * block + 8u + group);
    let high = byte_at(BOOK + 4u * blocks, 16u * block + group);
    let scales = byte_at(BOOK + 4u * blocks, 16u * block + 8u + group);
    let scale = half_at(BOOK + 5u * blocks, block);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        let eight = i / 2u;
        let index = ((low >> (8u * eight)) & 255u) | (((high >> (2u * eight)) & 3u) << 8u);
        let factor = (f32((scales >> (i / 4u * 4u)) & 15u) + 0.5) / 4.0;
        let integers = magnitudes(point(index) >> (8u * (i % 2u))) * signs_of(signs >> (4u * i));
        values[i] = integers * (scale * factor);
    }
    return values;
}
