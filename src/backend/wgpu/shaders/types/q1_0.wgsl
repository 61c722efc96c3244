// Q1_0: 128 signs with one f16 scale; value = scale if the bit is 1, else -scale.
//
// Two planes, each over all rows: the signs in order, 16 bytes per block; the scales. A chunk is half a
// block.
const CHUNK_QUADS: u32 = 16u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return 16u * chunk + i;
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let block = bits_at(at / 2u);
    let bits = select(block.xy, block.zw, at % 2u == 1u);
    let scale = half_at(#{w}.rows * params.w.chunks / 2u, at / 2u);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        let four = vec4(bits[i / 8u] >> (4u * (i % 8u))) & vec4(1u, 2u, 4u, 8u);
        values[i] = select(vec4(scale), vec4(-scale), four == vec4(0u));
    }
    return values;
}
