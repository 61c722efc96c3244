// Of a tile, 64 columns at a time, in the order of the type's chunks.
const TILE_QUADS: u32 = 16u;
const TILE_CHUNKS: u32 = TILE_QUADS / CHUNK_QUADS;

// [TILE_QUADS, TILE] each, so that neighbouring threads read neighbours.
var<workgroup> tile_of_w: array<vec4<f32>, TILE * TILE_QUADS>;
var<workgroup> tile_of_acts: array<vec4<f32>, TILE * TILE_QUADS>;

fn tile_pieces() -> u32 {
    return (params.w.chunks + TILE_CHUNKS - 1u) / TILE_CHUNKS;
}

fn bring(piece: u32, first_row: u32, first: u32) {
    let first_chunk = piece * TILE_CHUNKS;
    for (var job = thread; job < TILE * TILE_CHUNKS; job += THREADS) {
        let row = first_row + job / TILE_CHUNKS;
        let chunk = first_chunk + job % TILE_CHUNKS;
        var values: array<vec4<f32>, CHUNK_QUADS>;
        if (row < params.w.rows && chunk < params.w.chunks) {
            values = decode(row, chunk);
        }
        for (var i = 0u; i < CHUNK_QUADS; i++) {
            tile_of_w[(job % TILE_CHUNKS * CHUNK_QUADS + i) * TILE + job / TILE_CHUNKS] = values[i];
        }
    }
    for (var at = thread; at < TILE * TILE_QUADS; at += THREADS) {
        let chunk = first_chunk + at % TILE_QUADS / CHUNK_QUADS;
        var value = vec4(0.0);
        if (chunk < params.w.chunks) {
            let r = first + at / TILE_QUADS;
            value = bitcast<vec4<f32>>(acts[r * params.stride + place(chunk, at % CHUNK_QUADS)]);
        }
        tile_of_acts[at % TILE_QUADS * TILE + at / TILE_QUADS] = value;
    }
}

fn add_piece(across: u32, down: u32, sums: ptr<function, Sums>) {
    for (var quad = 0u; quad < TILE_QUADS; quad++) {
        var w: array<vec4<f32>, 4>;
        for (var i = 0u; i < 4u; i++) {
            w[i] = tile_of_w[quad * TILE + across + 8u * i];
        }
        for (var j = 0u; j < 4u; j++) {
            let a = tile_of_acts[quad * TILE + down + 8u * j];
            for (var i = 0u; i < 4u; i++) {
                (*sums)[j][i] += dot(w[i], a);
            }
        }
    }
}
