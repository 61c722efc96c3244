// The 16 unevenly spaced values of IQ4_NL and IQ4_XS.
const TABLE: vec4<u32> = vec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u);
#include "lib/table.wgsl"
#if runs

const HAS_MINIMUM = false;
const QUAD_SCALE = 1.0;

struct Chunk {
    bits: vec4<u32>,
    scale: f32,
}

// Values of the low and the high nibble of a byte, in an f16 each: a variable index into a constant would
// become a chain of selects.
var<workgroup> values_of: array<u32, 256>;

fn fill_table() {
    for (var at = thread; at < 256u; at += THREADS) {
        values_of[at] = pack2x16float(vec2(value_of(at % 16u), value_of(at / 16u)));
    }
    workgroupBarrier();
}

// The i-th quad and the one 4 further, its neighbour in a run, have the same bytes: compilers look up both at
// once.
fn quad(chunk: Chunk, i: u32) -> vec4<f32> {
    let byte = unpack4xU8(chunk.bits[i % 4u]);
    let a = unpack2x16float(values_of[byte.x]);
    let b = unpack2x16float(values_of[byte.y]);
    let c = unpack2x16float(values_of[byte.z]);
    let d = unpack2x16float(values_of[byte.w]);
    return select(vec4(a.x, b.x, c.x, d.x), vec4(a.y, b.y, c.y, d.y), i >= 4u);
}

fn line_of(chunk: Chunk, run: u32) -> vec2<f32> {
    return vec2(chunk.scale, 0.0);
}
#endif
