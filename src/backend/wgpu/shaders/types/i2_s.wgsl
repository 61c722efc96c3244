// I2_S: ternary weights, 2 bits each, value = code - 1, one f32 scale per tensor.
//
// The layout is that of the file. A 32-byte block holds 128 weights in 4 groups of 32; byte b holds weight b
// of each group, group 0 in the high bits. So one word shifted right by 6, 4, 2, 0 and masked with 0x03030303
// is four neighbouring codes. A chunk is half a block: 16 bytes, 64 weights, 16 of each group.
const CHUNK_QUADS: u32 = 16u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return chunk / 2u * 32u + i / 4u * 8u + chunk % 2u * 4u + i % 4u;
}

fn codes(chunk: vec4<u32>, group: u32) -> vec4<u32> {
    return (chunk >> vec4(6u - 2u * group)) & vec4(0x03030303u);
}

// Code 3, which no quantiser writes, is decoded as 0.
fn ternary(code: u32) -> vec4<f32> {
    let codes = unpack4xU8(code);
    let values = vec4<f32>(codes) - 1.0;
    return select(values, vec4(0.0), codes == vec4(3u)) * #{w}.scale;
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let bits = bits_at(row * params.w.chunks + chunk);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var group = 0u; group < 4u; group++) {
        let four = codes(bits, group);
        for (var i = 0u; i < 4u; i++) {
            values[4u * group + i] = ternary(four[i]);
        }
    }
    return values;
}
