// TQ2_0: ternary weights, 2 bits each, one f16 scale per 256 of them; value = (code - 1) x scale. TQ1_0 is
// unpacked to it during upload.
//
// Blocks of 66 bytes prevent aligned loads, so the upload separates them into the codes of all rows, followed
// by all scales. A half block of 32 bytes holds 128 weights in 4 groups of 32, group 0 in the low bits:
// I2_S's order with the shifts reversed. A chunk is half of that: 16 bytes, 64 weights, 16 of each group.
const CHUNK_QUADS: u32 = 16u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return chunk / 2u * 32u + i / 4u * 8u + chunk % 2u * 4u + i % 4u;
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let bits = bits_at(at);
    let scale = half_at(#{w}.rows * params.w.chunks, at / 4u);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var group = 0u; group < 4u; group++) {
        let four = (bits >> vec4(2u * group)) & vec4(0x03030303u);
        for (var i = 0u; i < 4u; i++) {
            values[4u * group + i] = (vec4<f32>(unpack4xU8(four[i])) - 1.0) * scale;
        }
    }
    return values;
}
#if runs

const HAS_MINIMUM = false;
const QUAD_SCALE = 1.0;

struct Chunk {
    bits: vec4<u32>,
    scale: f32,
}

fn load(row_at: u32, chunk: u32) -> Chunk {
    let at = row_at + chunk;
    return Chunk(bits_at(at), half_at(#{w}.rows * params.w.chunks, at / 4u));
}

fn quad(chunk: Chunk, i: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8((chunk.bits[i % 4u] >> (i / 4u * 2u)) & 0x03030303u)) - 1.0;
}

fn line_of(chunk: Chunk, run: u32) -> vec2<f32> {
    return vec2(chunk.scale, 0.0);
}
#endif
