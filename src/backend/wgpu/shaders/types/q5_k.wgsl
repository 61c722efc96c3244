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
#if runs

struct Chunk {
    header: vec4<u32>,
    high: array<vec4<u32>, 2>,
    // The low nibbles are of the first group, the high ones of the second.
    q: array<vec4<u32>, 2>,
    pair: u32,
}

fn load(row_at: u32, chunk: u32) -> Chunk {
    let at = row_at + chunk;
    let block = at / 4u * 11u;
    let pair = at % 4u;
    let first = block + 3u + 2u * pair;
    // The lowest two bits of a byte are those of the pair.
    let high = array(bits_at(block + 1u) >> vec4(2u * pair), bits_at(block + 2u) >> vec4(2u * pair));
    return Chunk(bits_at(block), high, array(bits_at(first), bits_at(first + 1u)), pair);
}

fn quad(chunk: Chunk, i: u32) -> vec4<f32> {
    let low = (chunk.q[i / 4u % 2u][i % 4u] >> (i / 8u * 4u)) & 0x0f0f0f0fu;
    let high = (chunk.high[i / 4u % 2u][i % 4u] << (4u - i / 8u)) & 0x10101010u;
    return vec4<f32>(unpack4xU8(low | high));
}

fn line_of(chunk: Chunk, run: u32) -> vec2<f32> {
    let lines = scales_and_mins(chunk.header, chunk.pair);
    return select(lines.xz, lines.yw, run == 1u);
}
#endif
