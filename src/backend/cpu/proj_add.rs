//! Projection added to the residual stream.

use super::{Cx, two};
use crate::program::ProjAdd;

pub fn run(cx: &mut Cx<'_>, s: &ProjAdd) {
    let n = cx.step.rows.len();
    let k = cx.k.real;
    let norm = s.norm.as_ref().map(|norm| cx.weights.norm(norm));
    let (y, x) = two(cx.bufs, s.y, s.x);
    let (y_cols, y) = (y.cols, y.rows(n));
    let input = |row: usize, out: &mut [f32]| {
        let y = &y[row * y_cols..][..y_cols];
        match norm {
            Some(norm) => norm.apply(k, y, out),
            None => out.copy_from_slice(y),
        }
    };
    cx.layers.run(n, input, true, [(&s.w, x.rows_mut(n))]);
}
