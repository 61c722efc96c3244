// BF16: the upper halves of floats, rows padded with zeros to multiples of 16 bytes. A chunk is 8 of them.
const CHUNK_QUADS: u32 = 2u;

// Quad (4 neighbouring columns) of the row that the i-th of a chunk is.
fn place(chunk: u32, i: u32) -> u32 {
    return 2u * chunk + i;
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let bits = bits_at(row * params.w.chunks + chunk);
    let even = bitcast<vec4<f32>>(bits << vec4(16u));
    let odd = bitcast<vec4<f32>>(bits & vec4(0xffff0000u));
    return array(vec4(even.x, odd.x, even.y, odd.y), vec4(even.z, odd.z, even.w, odd.w));
}
