// Logits: logits[o] = W norm(x[outputs[o]]). AttnIn's products are written the same way.
fn finish(at: u32, y: f32) {
    out[at] = y;
}
