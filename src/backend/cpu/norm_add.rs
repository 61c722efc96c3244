//! A buffer that is normalised and added to the residual stream.

use super::cx::{Cx, two};
use sterna_program::NormAdd;

pub fn run(cx: &mut Cx<'_>, s: &NormAdd) {
    let NormAdd { y, ref norm, scale, x } = *s;
    let (n, k, norm) = (cx.step.rows.len(), cx.k.real, cx.weights.norm(norm));
    let (y, x) = two(cx.bufs, y, x);
    let (dim, y, x) = (x.cols, y.rows(n), x.rows_mut(n));
    cx.pool.chunks_mut(x, dim, |row, x| {
        norm.add(k, &y[row * dim..][..dim], x);
        if scale != 1.0 {
            x.iter_mut().for_each(|x| *x *= scale);
        }
    });
}
