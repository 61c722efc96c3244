// IQ4_XS: 256 indices of unevenly spaced values in 8 groups; value = (group scale - 32) x block scale x
// table[index].
//
// Two planes, each over all rows: the indices, 16 bytes per group; two words per block, the f16 scale and the
// high two bits of eight group scales, then their low four. A chunk is a group.
#include "lib/nibbles.wgsl"
#include "lib/uneven.wgsl"

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let groups = #{w}.rows * params.w.chunks;
    let at = row * params.w.chunks + chunk;
    let bits = bits_at(at);
    let block = at / 8u;
    let group = at % 8u;
    let first = word_at(groups, 2u * block);
    let low = (word_at(groups, 2u * block + 1u) >> (4u * group)) & 15u;
    let high = (first >> (16u + 2u * group)) & 3u;
    let scale = unpack2x16float(first).x * (f32(low | (high << 4u)) - 32.0);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        values[i] = of_table(nibbles(bits, i)) * scale;
    }
    return values;
}
