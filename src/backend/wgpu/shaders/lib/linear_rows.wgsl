// A workgroup owns THREADS / LANES rows of W (x) and ROWS rows of the step (y); LANES neighbouring threads share a row of W
// and read neighbouring chunks. Rows of acts behind the step's last are read and not used.
fn stage(workgroup: vec3<u32>, workgroups: vec3<u32>) {
    let row = workgroup.x * (THREADS / LANES) + slot_of();
    let first = workgroup.y * ROWS;
    var sums: array<Acc, ROWS>;
    if (row < params.w.rows) {
        for (var chunk = lane_of(); chunk < params.w.chunks; chunk += LANES) {
            add_products(row, chunk, first, &sums);
        }
    }
    for (var m = 0u; m < ROWS; m++) {
        let sum = sum_of_lanes(sums[m]);
        if (lane_of() == 0u && row < params.w.rows && first + m < n_rows()) {
            finished(sum, row, first + m);
        }
    }
}
