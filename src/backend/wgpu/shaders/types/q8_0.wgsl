// Q8_0: 32 int8 with one f16 scale, value = q x scale.
//
// Blocks of 34 bytes prevent aligned loads, so the upload separates them into the integers of all rows,
// followed by all scales. A chunk is 16 integers and their scale.
const CHUNK_QUADS: u32 = 4u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return 4u * chunk + i;
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let bits = bits_at(at);
    let scale = half_at(#{w}.rows * params.w.chunks, at / 2u);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        values[i] = vec4<f32>(unpack4xI8(bits[i])) * scale;
    }
    return values;
}
