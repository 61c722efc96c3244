// For many rows: a workgroup owns a tile of 32 rows of W (x) and 32 rows of the step (y), and each of its 64 threads 4 x 4
// outputs of it. A piece of the columns at a time goes through workgroup memory: `bring` fetches one, `add_piece` multiplies it.
const TILE: u32 = 32u;

alias Sums = array<array<Acc, 4>, 4>;

fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let first_row = workgroup.x * TILE;
    let first = workgroup.y * TILE;
    let across = thread % 8u;
    let down = thread / 8u;
    var sums: Sums;
    for (var piece = 0u; piece < tile_pieces(); piece++) {
        bring(piece, first_row, first);
        workgroupBarrier();
        add_piece(across, down, &sums);
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
