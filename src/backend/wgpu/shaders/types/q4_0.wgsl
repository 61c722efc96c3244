// Q4_0: 32 4-bit integers under one half scale, value = (q - 8) x scale.
//
// Blocks of 18 bytes have no place for aligned loads, so the upload takes them apart: the integers of all
// rows, and behind them all scales. A chunk is a block: byte b has element b in its low and b + 16 in its
// high half.
const CHUNK_QUADS: u32 = 8u;

// Quad (4 neighbouring columns) of the row that the i-th of a chunk is.
fn place(chunk: u32, i: u32) -> u32 {
    return 8u * chunk + i;
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let bits = weights[at];
    let scale = half_at(params.w.rows * params.w.chunks, at);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < 4u; i++) {
        values[i] = (vec4<f32>(unpack4xU8(bits[i] & 0x0f0f0f0fu)) - 8.0) * scale;
        values[4u + i] = (vec4<f32>(unpack4xU8(bits[i] >> 4u & 0x0f0f0f0fu)) - 8.0) * scale;
    }
    return values;
}
