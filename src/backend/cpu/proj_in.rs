//! Norm and the input projections of a recurrent layer.

use super::cx::Cx;
use crate::BackendError;
use sterna_program::ProjIn;

pub fn run(cx: &mut Cx<'_>, s: &ProjIn) -> Result<(), BackendError> {
    match s.products.len() {
        1 => products::<1, 2>(cx, s),
        2 => products::<2, 3>(cx, s),
        3 => products::<3, 4>(cx, s),
        _ => products::<{ ProjIn::MAX_PRODUCTS }, 5>(cx, s),
    }
}

/// Computes `N` products, with `N + 1` buffers.
fn products<const N: usize, const BUFS: usize>(cx: &mut Cx<'_>, s: &ProjIn) -> Result<(), BackendError> {
    let ProjIn { x, ref norm, ref products } = *s;
    let n = cx.step.rows.len();
    let k = cx.k.real;
    let norm = cx.weights.norm(norm);
    let bufs: [usize; BUFS] = std::array::from_fn(|i| if i == 0 { x } else { products[i - 1].1 }.0 as usize);
    let mut bufs = cx.bufs.get_disjoint_mut(bufs).expect("different buffers").into_iter();
    let x = bufs.next().expect("the input");
    let (x_cols, x) = (x.cols, x.rows(n));
    let input = |row: usize, out: &mut [f32]| norm.apply(k, &x[row * x_cols..][..x_cols], out);
    let layers: [_; N] =
        std::array::from_fn(|i| (&products[i].0, bufs.next().expect("one each").rows_mut(n)));
    cx.layers.run(n, input, false, layers)
}
