// 2-bit codes in order, value = (code - 1) x scale. A chunk is 64 of them in 16 bytes.
const CHUNK_QUADS: u32 = 16u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return 16u * chunk + i;
}

fn of_pairs(bits: vec4<u32>, scale: f32) -> array<vec4<f32>, CHUNK_QUADS> {
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        let codes = (vec4(bits[i / 4u] >> (8u * (i % 4u))) >> vec4(0u, 2u, 4u, 6u)) & vec4(3u);
        values[i] = (vec4<f32>(codes) - 1.0) * scale;
    }
    return values;
}
