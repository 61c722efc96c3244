// For many rows: a workgroup owns a tile of 32 rows of W (x) and 32 rows of the step (y), and each of its 64 threads 4 x 4
// outputs of it. A block of 128 columns at a time goes through workgroup memory.
const TILE: u32 = 32u;

// [2, TILE]: half blocks of codes.
var<workgroup> tile_of_w: array<vec4<u32>, 64>;
// [8, TILE]: 16 activations a vector.
var<workgroup> tile_of_acts: array<vec4<u32>, 256>;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let first_row = workgroup.x * TILE;
    let first = workgroup.y * TILE;
    let across = thread % 8u;
    let down = thread / 8u;
    var sums: array<array<Acc, 4>, 4>;
    for (var block = 0u; block < params.w.chunks / 2u; block++) {
        let row = first_row + thread / 2u;
        var bits = vec4(0u);
        if (row < params.w.rows) {
            bits = weights[row * params.w.chunks + 2u * block + thread % 2u];
        }
        tile_of_w[thread % 2u * TILE + thread / 2u] = bits;
        for (var at = thread; at < 8u * TILE; at += THREADS) {
            tile_of_acts[at % 8u * TILE + at / 8u] = acts[(first + at / 8u) * params.stride + 8u * block + at % 8u];
        }
        workgroupBarrier();
        for (var piece = 0u; piece < 8u; piece++) {
            var code: array<vec4<u32>, 4>;
            for (var i = 0u; i < 4u; i++) {
                code[i] = codes(tile_of_w[piece % 2u * TILE + across + 8u * i], piece / 2u);
            }
            for (var j = 0u; j < 4u; j++) {
                let q = tile_of_acts[piece * TILE + down + 8u * j];
                for (var i = 0u; i < 4u; i++) {
                    sums[j][i] += (four(code[i].x, q.x) + four(code[i].y, q.y)) + (four(code[i].z, q.z) + four(code[i].w, q.w));
                }
            }
        }
        workgroupBarrier();
    }
    for (var j = 0u; j < 4u; j++) {
        let r = first + down + 8u * j;
        for (var i = 0u; i < 4u; i++) {
            let row = first_row + across + 8u * i;
            if (row < params.w.rows && r < n_rows()) {
                finished(sums[j][i], row, r);
            }
        }
    }
}
