// IQ2_XS: 8 weights are one of 512 points and seven signs; value = scale of 16 x block scale x integer.
//
// The codebook, then three planes, each over all rows: 8 bytes per group, four times a 9-bit index below
// seven signs; one byte per group, the 4-bit scales of its halves; one f16 scale per block.
#include "lib/points.wgsl"

const BOOK: u32 = 64u;

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let groups = #{w}.rows * params.w.chunks;
    let at = row * params.w.chunks + chunk;
    let scales_at = BOOK + vectors(8u * groups);
    let scales = byte_at(scales_at, at);
    let scale = half_at(scales_at + vectors(groups), at / 8u);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        let both = short_at(BOOK, 4u * at + i / 2u);
        let codes = point(both & 511u) >> (8u * (i % 2u));
        let minuses = even(both >> 9u) >> (4u * (i % 2u));
        let factor = (f32((scales >> (i / 4u * 4u)) & 15u) + 0.5) / 4.0;
        values[i] = magnitudes(codes) * signs_of(minuses) * (scale * factor);
    }
    return values;
}
