// Q6_K: 256 6-bit integers in 16 groups with int8 group scales and one f16 scale; value = (q - 32) x group
// scale x scale.
//
// Blocks of 210 bytes prevent aligned loads, so the upload separates them. A chunk is 64 elements of one half
// block h (of 128): those whose number modulo 32 is below 16 (t = 0) or not (t = 1), that is 128 h + 32 i +
// 16 t + (0 .. 15), i = 0 .. 3. Each i is one group. Four planes, each over all rows:
//
//   low 4 bits, 32 bytes per chunk: 16 bytes of i = 0 (low nibble) and 2 (high), then 16 of i = 1 and 3
//   high 2 bits, 16 bytes per chunk: i = 0 in the low bits to i = 3 in the high bits
//   group scales, 4 bytes per chunk: i = 0 .. 3
//   block scales, one f16 per block: chunks 4 b .. 4 b + 3
const CHUNK_QUADS: u32 = 16u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return chunk / 2u * 32u + i / 4u * 8u + chunk % 2u * 4u + i % 4u;
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let chunks = #{w}.rows * params.w.chunks;
    let at = row * params.w.chunks + chunk;
    let high = bits_at(2u * chunks + at);
    let groups = vec4<f32>(unpack4xI8(bits_at(3u * chunks + at / 4u)[at % 4u]));
    let scale = half_at(3u * chunks + chunks / 4u, at / 4u);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < 4u; i++) {
        let low = (bits_at(2u * at + i % 2u) >> vec4(i / 2u * 4u)) & vec4(0x0f0f0f0fu);
        let q = low | (((high >> vec4(2u * i)) & vec4(0x03030303u)) << vec4(4u));
        for (var quad = 0u; quad < 4u; quad++) {
            values[4u * i + quad] = (vec4<f32>(unpack4xU8(q[quad])) - 32.0) * (scale * groups[i]);
        }
    }
    return values;
}
#if runs

const HAS_MINIMUM = false;
const QUAD_SCALE = 1.0;

struct Chunk {
    low: array<vec4<u32>, 2>,
    high: vec4<u32>,
    groups: u32,
    scale: f32,
}

fn load(row_at: u32, chunk: u32) -> Chunk {
    let chunks = #{w}.rows * params.w.chunks;
    let at = row_at + chunk;
    let low = array(bits_at(2u * at), bits_at(2u * at + 1u));
    let scale = half_at(3u * chunks + chunks / 4u, at / 4u);
    return Chunk(low, bits_at(2u * chunks + at), bits_at(3u * chunks + at / 4u)[at % 4u], scale);
}

fn quad(chunk: Chunk, i: u32) -> vec4<f32> {
    let low = (chunk.low[i / 4u % 2u][i % 4u] >> (i / 8u * 4u)) & 0x0f0f0f0fu;
    let shift = i / 4u * 2u;
    let word = chunk.high[i % 4u];
    let high = select(word >> (max(shift, 4u) - 4u), word << (4u - min(shift, 4u)), shift < 4u) & 0x30303030u;
    return vec4<f32>(unpack4xU8(low | high)) - 32.0;
}

fn line_of(chunk: Chunk, run: u32) -> vec2<f32> {
    return vec2(chunk.scale * f32(unpack4xI8(chunk.groups)[run]), 0.0);
}
#endif
