//! Final norm and output head, for the rows that asked.

use super::{Cx, two};
use crate::program::Logits;

pub fn run(cx: &mut Cx<'_>, s: &Logits) {
    let outputs = cx.outputs;
    if outputs.is_empty() {
        return;
    }
    let k = cx.k.real;
    let norm = cx.weights.norm(&s.norm);
    let (x, logits) = two(cx.bufs, s.x, s.logits);
    let (x_cols, x) = (x.cols, x.rows(cx.step.rows.len()));
    let input = |i: usize, out: &mut [f32]| norm.apply(k, &x[outputs[i] * x_cols..][..x_cols], out);
    cx.layers.run(outputs.len(), input, false, [(&s.w, logits.rows_mut(outputs.len()))]);
}
