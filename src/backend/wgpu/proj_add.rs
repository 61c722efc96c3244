//! Projection added to the residual stream. If the product or the residual is normalised first, or the sum
//! has a factor, the layer writes its product to scratch, and one workgroup per row does the rest. The same
//! kernel normalises rows in place.

use wgpu::Buffer;

use super::linear::{self, Input, Layer};
use super::shader::Kernel;
use super::{Cx, Dispatch, Grid};
use sterna_program::{Norm, NormAdd, Program, ProjAdd, RowsOf};

/// Bytes of a step's products, if they are not added directly.
pub fn fresh_bytes(p: &Program, s: &ProjAdd) -> u64 {
    let product = (4 * p.limits.rows).saturating_mul(p.buf_decl(s.x).cols);
    if s.post.is_some() || s.residual.is_some() || s.scale != 1.0 { product as u64 } else { 0 }
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a ProjAdd) -> Vec<Dispatch<'a>> {
    let ProjAdd { y, ref w, ref post, ref residual, scale, x } = *s;
    let input = Input { x: y, norm: None, rows: RowsOf::Step };
    let (x, dim) = (&cx.memory.bufs[x.0 as usize], cx.p.buf_decl(x).cols);
    let layer = |out| Layer { linear: w, out, out_cols: dim, out_at: 0, what: 0 };
    if post.is_none() && residual.is_none() && scale == 1.0 {
        return linear::dispatches(cx, "proj_add", input, vec![layer(x)]);
    }
    // A product that is stored unchanged uses the kernel of the logits.
    let mut all = linear::dispatches(cx, "logits", input, vec![layer(&cx.memory.fresh)]);
    let norms = [post.as_ref(), residual.as_ref()];
    all.push(post_norm(cx, norms, scale, &cx.memory.fresh, (x, dim)));
    all
}

/// A buffer, normalised, added to the residual stream.
pub fn add_normed<'a>(cx: &Cx<'a>, s: &'a NormAdd) -> Dispatch<'a> {
    let NormAdd { y, ref norm, scale, x } = *s;
    let dim = cx.p.buf_decl(x).cols;
    let [y, x] = [y, x].map(|buf| &cx.memory.bufs[buf.0 as usize]);
    post_norm(cx, [Some(norm), None], scale, y, (x, dim))
}

/// `x = scale * (residual(x) + post(product))`, with the norms `[post, residual]` and rows of `dim` elements.
fn post_norm<'a>(
    cx: &Cx<'a>,
    [post, residual]: [Option<&Norm>; 2],
    scale: f32,
    product: &'a Buffer,
    (x, dim): (&'a Buffer, usize),
) -> Dispatch<'a> {
    let mut params = linear::norm(cx, post).to_vec();
    params.extend(residual.iter().flat_map(|residual| linear::norm(cx, Some(residual))));
    params.extend([dim as u32, scale.to_bits()]);
    let kernel = Kernel::PostNorm(if residual.is_some() { "residual" } else { "product" });
    Dispatch {
        kernels: vec![(usize::MAX, kernel)],
        params,
        buffers: vec![&cx.memory.step.buffer, &cx.memory.constants, product, x],
        grid: Grid::Rows { x: 1, rows: RowsOf::Step },
    }
}

/// Normalises rows of `x`, `cols` elements each, in place.
pub fn norm_rows<'a>(cx: &Cx<'a>, of: &Norm, x: &'a Buffer, cols: usize) -> Dispatch<'a> {
    Dispatch {
        kernels: vec![(usize::MAX, Kernel::PostNorm("rows"))],
        params: linear::norm(cx, Some(of)).into_iter().chain([cols as u32]).collect(),
        buffers: vec![&cx.memory.step.buffer, &cx.memory.constants, x],
        grid: Grid::Rows { x: 1, rows: RowsOf::Step },
    }
}
