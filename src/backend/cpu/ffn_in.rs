//! Norm and the first half of the feed-forward network.

use super::{Cx, two};
use crate::BackendError;
use sterna_program::FfnIn;

/// Elements of one task of the activation function.
const CHUNK: usize = 8192;

pub fn run(cx: &mut Cx<'_>, s: &FfnIn) -> Result<(), BackendError> {
    let n = cx.step.rows.len();
    let k = cx.k.real;
    let norm = cx.weights.norm(&s.norm);
    let (x, h) = two(cx.bufs, s.x, s.h);
    let (x_cols, x) = (x.cols, x.rows(n));
    let h = h.rows_mut(n);
    let input = |row: usize, out: &mut [f32]| norm.apply(k, &x[row * x_cols..][..x_cols], out);
    match &s.gate {
        Some(gate) => {
            let g = &mut cx.scratch.product[..h.len()];
            cx.layers.run(n, input, false, [(gate, &mut *g), (&s.up, &mut *h)])?;
            let g = &*g;
            cx.pool.chunks_mut(h, CHUNK, |i, h| (k.gate)(s.act, &g[i * CHUNK..][..h.len()], h));
        }
        None => {
            cx.layers.run(n, input, false, [(&s.up, &mut *h)])?;
            cx.pool.chunks_mut(h, CHUNK, |_, h| (k.act)(s.act, h));
        }
    }
    Ok(())
}
