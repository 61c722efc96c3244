// ProjAdd: x[r] += W norm(y[r]).
fn finish(at: u32, y: f32) {
    out[at] += y;
}
