// Q3_K: 256 3-bit integers in 16 groups; value = (q - 4) x (group scale - 32) x block scale.
//
// Blocks are padded from 110 to 112 bytes, 7 vectors: two of third bits (bit g of byte b belongs to element
// 32 g + b), four of the low two bits, and one of packed 6-bit group scales and the f16 block scale.
#include "lib/halves.wgsl"

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let block = at / 4u * 7u;
    let part = at % 4u;
    let high = bits_at(block + part % 2u);
    let low = bits_at(block + 2u + part);
    let scales = bits_at(block + 6u);
    let of_block = unpack2x16float(scales.w).x;
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var shift = 0u; shift < 4u; shift++) {
        // The group's number modulo 8; the low four bits of its scale, and the high two.
        let group = 2u * shift + part % 2u;
        let four = (scales[group / 4u] >> (8u * (group % 4u) + part / 2u * 4u)) & 15u;
        let two = (scales.z >> (8u * (group % 4u) + part / 2u * 4u + shift / 2u * 2u)) & 3u;
        let scale = of_block * (f32(four | (two << 4u)) - 32.0);
        let third = (high >> vec4(part / 2u * 4u + shift)) & vec4(0x01010101u);
        let q = ((low >> vec4(2u * shift)) & vec4(0x03030303u)) | (third << vec4(2u));
        for (var i = 0u; i < 4u; i++) {
            values[4u * shift + i] = (vec4<f32>(unpack4xU8(q[i])) - 4.0) * scale;
        }
    }
    return values;
}
