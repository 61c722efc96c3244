// Embed: x[r] = scale * table[stride * token[r] + first] (+ positions[pos[r]]). The token may be the last one
// that `sample` picked for the sequence.
//
// A workgroup owns one row of the step, a thread every THREADS-th quad of columns, for which it decodes a
// whole chunk: unrolled stores of a chunk took drivers seconds to compile. Reads one row of the table. Each
// part of a table is a dispatch of its own, which skips the rows of other parts.
#include "lib/main.wgsl"
#include "lib/matrix.wgsl"

struct Params {
    w: Matrix,
    cols: u32,
    // Floats per row of positions; 0 without learned positions.
    positions_stride: u32,
    scale: f32,
    // Rows of the table per token, and the row among them.
    stride: u32,
    first: u32,
}

@group(0) @binding(0) var<uniform> params: Params;
@group(0) @binding(2) var<storage, read> weights: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> positions: array<f32>;
// [seqs]: the last picked tokens.
@group(0) @binding(4) var<storage, read> picked: array<u32>;
@group(0) @binding(5) var<storage, read_write> x: array<f32>;

// Program's Row::PICKED.
const TOKEN_PICKED: u32 = 0xffffffffu;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let r = workgroup.y;
    let row = step_row(r);
    var token = row.token;
    if (token == TOKEN_PICKED) {
        token = picked[row.seq];
    }
    // Wraps around for tokens of earlier parts.
    let at = token * params.stride + params.first - params.w.first_row;
    if (at >= params.w.rows) {
        return;
    }
    let quads = params.w.chunks * CHUNK_QUADS;
    for (var quad = thread; quad < quads; quad += THREADS) {
        let chunk = quad / CHUNK_QUADS;
        let i = quad % CHUNK_QUADS;
        let values = decode(at, chunk)[i] * params.scale;
        let first = 4u * place(chunk, i);
        for (var e = 0u; e < 4u; e++) {
            let col = first + e;
            if (col >= params.cols) {
                continue;
            }
            var value = values[e];
            if (params.positions_stride > 0u) {
                value += positions[row.pos * params.positions_stride + col];
            }
            x[r * params.cols + col] = value;
        }
    }
}
