// BF16: the upper halves of f32, rows padded with zeros to multiples of 16 bytes. A chunk is 8 elements.
const CHUNK_QUADS: u32 = 2u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return 2u * chunk + i;
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let bits = bits_at(row * params.w.chunks + chunk);
    let even = bitcast<vec4<f32>>(bits << vec4(16u));
    let odd = bitcast<vec4<f32>>(bits & vec4(0xffff0000u));
    return array(vec4(even.x, odd.x, even.y, odd.y), vec4(even.z, odd.z, even.w, odd.w));
}
