// IQ2_BN: ternary weights, 2 bits each, one f32 scale per row; value = (code - 1) x scale. IQ2_BN_R4 and
// IQ1_BN are converted to it during upload.
//
// Two planes, each over all rows: the codes, 16 bytes for 64 weights, where byte b holds the codes of weights
// b, 16 + b, 32 + b and 48 + b from the low bits up; then one word per row, its scale. A chunk is 64 weights.
const CHUNK_QUADS: u32 = 16u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return 16u * chunk + i;
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let bits = bits_at(row * params.w.chunks + chunk);
    let scale = bitcast<f32>(word_at(#{w}.rows * params.w.chunks, row));
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        let codes = (bits[i % 4u] >> (2u * (i / 4u))) & 0x03030303u;
        values[i] = (vec4<f32>(unpack4xU8(codes)) - 1.0) * scale;
    }
    return values;
}
