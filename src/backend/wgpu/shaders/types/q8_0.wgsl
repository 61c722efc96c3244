// Q8_0: 32 int8 with one f16 scale, value = q x scale.
//
// Blocks of 34 bytes prevent aligned loads, so the upload separates them into the integers of all rows,
// followed by all scales. A chunk is a block.
const CHUNK_QUADS: u32 = 8u;

// Index in the row of the chunk's i-th quad (4 neighbouring columns).
fn place(chunk: u32, i: u32) -> u32 {
    return 8u * chunk + i;
}

fn decode(row: u32, chunk: u32) -> array<vec4<f32>, CHUNK_QUADS> {
    let at = row * params.w.chunks + chunk;
    let bits = array(bits_at(2u * at), bits_at(2u * at + 1u));
    let scale = half_at(2u * #{w}.rows * params.w.chunks, at);
    var values: array<vec4<f32>, CHUNK_QUADS>;
    for (var i = 0u; i < CHUNK_QUADS; i++) {
        values[i] = vec4<f32>(unpack4xI8(bits[i / 4u][i % 4u])) * scale;
    }
    return values;
}
#if runs

const HAS_MINIMUM = false;
const QUAD_SCALE = 1.0;

struct Chunk {
    q: array<vec4<u32>, 2>,
    scale: f32,
}

fn load(row_at: u32, chunk: u32) -> Chunk {
    let at = row_at + chunk;
    let scale = half_at(2u * #{w}.rows * params.w.chunks, at);
    return Chunk(array(bits_at(2u * at), bits_at(2u * at + 1u)), scale);
}

fn quad(chunk: Chunk, i: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(chunk.q[i / 4u][i % 4u]));
}

fn line_of(chunk: Chunk, run: u32) -> vec2<f32> {
    return vec2(chunk.scale, 0.0);
}
#endif
