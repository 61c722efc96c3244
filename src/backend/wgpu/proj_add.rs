//! Projection added to the residual stream. Where the product is normed first, the layer leaves it, and a
//! workgroup a row norms and adds it.

use super::linear::{self, Input, Layer};
use super::shader::Kernel;
use super::{Cx, Dispatch, Grid};
use sterna_program::{Program, ProjAdd, RowsOf};

/// Bytes of a step's products that are normed.
pub fn fresh_bytes(p: &Program, s: &ProjAdd) -> u64 {
    let product = (4 * p.limits.rows).saturating_mul(p.buf_decl(s.x).cols);
    if s.post.is_some() { product as u64 } else { 0 }
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a ProjAdd) -> Vec<Dispatch<'a>> {
    let input = Input { x: s.y, norm: s.norm.as_ref(), rows: RowsOf::Step };
    let (x, dim) = (&cx.memory.bufs[s.x.0 as usize], cx.p.buf_decl(s.x).cols);
    let layer = |out| Layer { linear: &s.w, out, out_cols: dim, out_at: 0, what: 0 };
    let Some(post) = &s.post else { return linear::dispatches(cx, "proj_add", input, vec![layer(x)]) };
    // A product that is merely written, as logits are.
    let mut all = linear::dispatches(cx, "logits", input, vec![layer(&cx.memory.fresh)]);
    all.push(Dispatch {
        kernels: vec![(usize::MAX, Kernel::PostNorm)],
        params: linear::norm(cx, Some(post)).into_iter().chain([dim as u32]).collect(),
        buffers: vec![&cx.memory.step.buffer, &cx.memory.constants, &cx.memory.fresh, x],
        grid: Grid::Rows { x: 1, rows: RowsOf::Step },
    });
    all
}
