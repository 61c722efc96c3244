// Q4_K: 256 4-bit integers in 8 groups; value = q x group scale - group minimum.
//
// The layout is that of the file: 9 vectors of 16 bytes per block, a header and four pairs of groups.
#include "lib/k_groups.wgsl"

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let block = at / 4u * 9u;
    let pair = at % 4u;
    let header = bits_at(block);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var odd = 0u; odd < 2u; odd++) {
        let line = scale_and_min(header, 2u * pair + odd);
        for (var part = 0u; part < 2u; part++) {
            let q = (bits_at(block + 1u + 2u * pair + part) >> vec4(4u * odd)) & vec4(0x0f0f0f0fu);
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
    // The low nibbles are of the first group, the high ones of the second.
    q: array<vec4<u32>, 2>,
    pair: u32,
}

fn load(row_at: u32, chunk: u32) -> Chunk {
    let at = row_at + chunk;
    let block = at / 4u * 9u;
    let pair = at % 4u;
    let first = block + 1u + 2u * pair;
    return Chunk(bits_at(block), array(bits_at(first), bits_at(first + 1u)), pair);
}

// Those of the second group are 16 times the code.
fn quad(chunk: Chunk, i: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8(chunk.q[i / 4u % 2u][i % 4u] & (0x0f0f0f0fu << (i / 8u * 4u))));
}

fn line_of(chunk: Chunk, run: u32) -> vec2<f32> {
    let lines = scales_and_mins(chunk.header, chunk.pair);
    return select(lines.xz, vec2(lines.y / 16.0, lines.w), run == 1u);
}
#endif
