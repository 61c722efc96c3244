// IQ4_XS: 256 indices of unevenly spaced values in 8 groups; value = (group scale - 32) x block scale x
// table[index].
//
// Two planes, each over all rows: the indices, 16 bytes per group; two words per block, the f16 scale and the
// high two bits of eight group scales, then their low four. A chunk is a group.
#include "lib/nibbles.wgsl"
#include "lib/uneven.wgsl"

// The scale of a group, by its index in the part.
fn scale_of(at: u32) -> f32 {
    let groups = #{w}.rows * params.w.chunks;
    let first = word_at(groups, 2u * (at / 8u));
    let low = (word_at(groups, 2u * (at / 8u) + 1u) >> (4u * (at % 8u))) & 15u;
    let high = (first >> (16u + 2u * (at % 8u))) & 3u;
    return unpack2x16float(first).x * (f32(low | (high << 4u)) - 32.0);
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let bits = bits_at(at);
    let scale = scale_of(at);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        values[i] = of_table(nibbles(bits, i)) * scale;
    }
    return values;
}
#if runs

fn load(row_at: u32, chunk: u32) -> Chunk {
    let at = row_at + chunk;
    return Chunk(bits_at(at), scale_of(at));
}
#endif
