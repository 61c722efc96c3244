//! Projection added to the residual stream. If the product or the residual is normalised first, the layer
//! writes its product to scratch, and one workgroup per row normalises and adds.

use super::linear::{self, Input, Layer};
use super::shader::Kernel;
use super::{Cx, Dispatch, Grid};
use sterna_program::{Program, ProjAdd, RowsOf};

/// Bytes of a step's products, if they are not added directly.
pub fn fresh_bytes(p: &Program, s: &ProjAdd) -> u64 {
    let product = (4 * p.limits.rows).saturating_mul(p.buf_decl(s.x).cols);
    if s.post.is_some() || s.residual.is_some() { product as u64 } else { 0 }
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a ProjAdd) -> Vec<Dispatch<'a>> {
    let ProjAdd { y, ref w, ref post, ref residual, x } = *s;
    let input = Input { x: y, norm: None, rows: RowsOf::Step };
    let (x, dim) = (&cx.memory.bufs[x.0 as usize], cx.p.buf_decl(x).cols);
    let layer = |out| Layer { linear: w, out, out_cols: dim, out_at: 0, what: 0 };
    if post.is_none() && residual.is_none() {
        return linear::dispatches(cx, "proj_add", input, vec![layer(x)]);
    }
    // A product that is stored unchanged uses the kernel of the logits.
    let mut all = linear::dispatches(cx, "logits", input, vec![layer(&cx.memory.fresh)]);
    let mut params = linear::norm(cx, post.as_ref()).to_vec();
    params.extend(residual.iter().flat_map(|residual| linear::norm(cx, Some(residual))));
    params.push(dim as u32);
    all.push(Dispatch {
        kernels: vec![(usize::MAX, Kernel::PostNorm { residual: residual.is_some() })],
        params,
        buffers: vec![&cx.memory.step.buffer, &cx.memory.constants, &cx.memory.fresh, x],
        grid: Grid::Rows { x: 1, rows: RowsOf::Step },
    });
    all
}
