// F32: rows padded with zeros to multiples of 32 bytes. A chunk is 8 floats.
const CHUNK_QUADS: u32 = 2u;

// Quad (4 neighbouring columns) of the row that the i-th of a chunk is.
fn place(chunk: u32, i: u32) -> u32 {
    return 2u * chunk + i;
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = 2u * (row * params.w.chunks + chunk);
    return array(bitcast<vec4<f32>>(bits_at(at)), bitcast<vec4<f32>>(bits_at(at + 1u)));
}
