// F32: rows padded with zeros to multiples of 32 bytes. A chunk is 8 elements.
const CHUNK_QUADS: u32 = 2u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return 2u * chunk + i;
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = 2u * (row * params.w.chunks + chunk);
    return array(bitcast<vec4<f32>>(bits_at(at)), bitcast<vec4<f32>>(bits_at(at + 1u)));
}
