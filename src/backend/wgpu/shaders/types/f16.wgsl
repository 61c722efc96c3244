// F16: rows padded with zeros to multiples of 16 bytes. A chunk is 8 elements.
const CHUNK_QUADS: u32 = 2u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return 2u * chunk + i;
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let bits = bits_at(row * params.w.chunks + chunk);
    return array(
        vec4(unpack2x16float(bits.x), unpack2x16float(bits.y)),
        vec4(unpack2x16float(bits.z), unpack2x16float(bits.w)),
    );
}
