// What Lloyd-Max codes stand for, where a thread finds any of them.
var<workgroup> table: array<f32, 16>;

fn prepare() {
    if (thread < 16u) {
        table[thread] = params.cache.values[thread / 4u][thread % 4u];
    }
}

fn value_of(code: u32) -> f32 {
    return table[code];
}
