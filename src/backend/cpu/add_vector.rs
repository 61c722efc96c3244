//! A vector that is added to the residual stream.

use super::cx::Cx;
use sterna_program::AddVector;

pub fn run(cx: &mut Cx<'_>, s: &AddVector) {
    let AddVector { x, v } = *s;
    let (n, v) = (cx.step.rows.len(), cx.weights.vector(v));
    let x = cx.bufs[x.0 as usize].rows_mut(n);
    cx.pool.chunks_mut(x, v.len(), |_, x| x.iter_mut().zip(v).for_each(|(x, v)| *x += v));
}
