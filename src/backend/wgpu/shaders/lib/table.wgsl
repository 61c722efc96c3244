// What Lloyd-Max codes stand for, where a thread finds any of them.
var<workgroup> side_table: array<f32, 16>;

fn side_prepare() {
    if (thread < 16u) {
        side_table[thread] = params.side.numbers[thread / 4u][thread % 4u];
    }
}

fn side_number_of(code: u32) -> f32 {
    return side_table[code];
}
