//! Norm and the input projections of a gated delta net.

use super::cx::Cx;
use crate::BackendError;
use sterna_program::DeltaIn;

pub fn run(cx: &mut Cx<'_>, s: &DeltaIn) -> Result<(), BackendError> {
    let DeltaIn { x, ref norm, ref wu, ref wz, ref wa, ref wb, u, z, a, b } = *s;
    let n = cx.step.rows.len();
    let k = cx.k.real;
    let norm = cx.weights.norm(norm);
    let bufs = [x, u, z, a, b].map(|buf| buf.0 as usize);
    let [x, u, z, a, b] = cx.bufs.get_disjoint_mut(bufs).expect("five buffers");
    let (x_cols, x) = (x.cols, x.rows(n));
    let input = |row: usize, out: &mut [f32]| norm.apply(k, &x[row * x_cols..][..x_cols], out);
    let [u, z, a, b] = [u, z, a, b].map(|buf| buf.rows_mut(n));
    cx.layers.run(n, input, false, [(wu, u), (wz, z), (wa, a), (wb, b)])
}
