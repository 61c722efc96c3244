// Of a tile, a block of 128 columns at a time.

// [2, TILE]: half blocks of codes.
var<workgroup> tile_of_w: array<vec4<u32>, 64>;
// [8, TILE]: 16 activations a vector.
var<workgroup> tile_of_acts: array<vec4<u32>, 256>;

fn tile_pieces() -> u32 {
    return params.w.chunks / 2u;
}

fn bring(piece: u32, first_row: u32, first: u32) {
    let row = first_row + thread / 2u;
    var bits = vec4(0u);
    if (row < params.w.rows) {
        bits = weights[row * params.w.chunks + 2u * piece + thread % 2u];
    }
    tile_of_w[thread % 2u * TILE + thread / 2u] = bits;
    for (var at = thread; at < 8u * TILE; at += THREADS) {
        tile_of_acts[at % 8u * TILE + at / 8u] = acts[(first + at / 8u) * params.stride + 8u * piece + at % 8u];
    }
}

fn add_piece(across: u32, down: u32, sums: ptr<function, Sums>) {
    for (var part = 0u; part < 8u; part++) {
        var code: array<vec4<u32>, 4>;
        for (var i = 0u; i < 4u; i++) {
            code[i] = codes(tile_of_w[part % 2u * TILE + across + 8u * i], part / 2u);
        }
        for (var j = 0u; j < 4u; j++) {
            let q = tile_of_acts[part * TILE + down + 8u * j];
            for (var i = 0u; i < 4u; i++) {
                (*sums)[j][i] += (four(code[i].x, q.x) + four(code[i].y, q.y)) + (four(code[i].z, q.z) + four(code[i].w, q.w));
            }
        }
    }
}
