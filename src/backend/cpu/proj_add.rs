//! Projection that is added to the residual stream.

use super::cx::{Cx, two};
use crate::BackendError;
use sterna_program::ProjAdd;

pub fn run(cx: &mut Cx<'_>, s: &ProjAdd) -> Result<(), BackendError> {
    let ProjAdd { y, ref w, ref post, ref residual, scale, x } = *s;
    let n = cx.step.rows.len();
    let k = cx.k.real;
    let (y, x) = two(cx.bufs, y, x);
    let (y_cols, y) = (y.cols, y.rows(n));
    let input = |row: usize, out: &mut [f32]| out.copy_from_slice(&y[row * y_cols..][..y_cols]);
    let (dim, x) = (x.cols, x.rows_mut(n));
    if let Some(residual) = residual.as_ref().map(|norm| cx.weights.norm(norm)) {
        cx.pool.chunks_mut(x, dim, |_, x| residual.apply_in_place(k, x));
    }
    match post.as_ref().map(|post| cx.weights.norm(post)) {
        None => cx.layers.run(n, input, true, [(w, &mut *x)])?,
        Some(post) => {
            let product = &mut cx.scratch.product[..x.len()];
            cx.layers.run(n, input, false, [(w, &mut *product)])?;
            let product = &*product;
            cx.pool.chunks_mut(x, dim, |row, x| post.add(k, &product[row * dim..][..dim], x));
        }
    }
    if scale != 1.0 {
        x.iter_mut().for_each(|x| *x *= scale);
    }
    Ok(())
}
