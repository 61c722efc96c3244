//! A projection added to the residual stream. If the product or the residual is normalised first, the layer
//! only writes the product, and a second launch, one block per row, normalises and adds.

use super::combine::{self, Combine};
use super::cx::Cx;
use super::driver::Launch;
use super::linear::geometry::Work;
use super::linear::{self, Input};
use super::params::ProjAddParams;
use super::post_norm;
use sterna_program::{Linear, Program, ProjAdd, RowsOf};

pub fn kernels(p: &Program, s: &ProjAdd) -> Result<Vec<String>, String> {
    // A norm of the layer is its input's only one; the kernels of the products apply it.
    let w = Linear { norm: None, ..s.w.clone() };
    if is_normed(s) {
        // The product is only written, as logits are.
        let mut names = linear::kernels(p, "logits", &[&w])?;
        names.push(post_norm::kernel(s.residual.is_some()).to_owned());
        return Ok(names);
    }
    let mut names = linear::kernels(p, "proj_add", &[&w])?;
    names.extend((products(p, s) > 0).then(|| combine::KERNEL.to_owned()));
    Ok(names)
}

/// True if the product or the residual is normalised before the addition.
fn is_normed(s: &ProjAdd) -> bool {
    s.post.is_some() || s.residual.is_some()
}

/// Floats per row of the products that are kept for `combine` or `post_norm`.
pub fn products(p: &Program, s: &ProjAdd) -> usize {
    let waits = is_normed(s) || linear::together(p, &[&s.w]).is_none();
    if waits { p.weight_decl(s.w.w).rows } else { 0 }
}

pub fn launches(cx: &Cx<'_>, s: &ProjAdd) -> Vec<Launch> {
    let ProjAdd { y, ref w, ref post, ref residual, x } = *s;
    let input = Input { x: y, norm: None, rows: RowsOf::Step };
    let x = cx.memory.bufs[x.0 as usize];
    let (y, cols) = (cx.memory.products, cx.p.weight_decl(w.w).rows);
    if is_normed(s) {
        let products = linear::product(cx, w, &input, y);
        let norms = [post.as_ref(), residual.as_ref()];
        return products.into_iter().chain([post_norm::launch(cx, norms, y, x, cols)]).collect();
    }
    if linear::together(cx.p, &[w]).is_none() {
        let combine = Combine { gate: None, y, out: x, cols, act: None, add: true, each: 1 };
        let products = linear::product(cx, w, &input, y);
        return products.into_iter().chain([combine::launch(cx, &combine)]).collect();
    }
    let layer = linear::linear(cx, w);
    let work = Work { rows: layer.rows as usize, paired: false };
    let params = |in_| ProjAddParams { step: cx.tables(), in_, w: layer, x };
    linear::launches(cx, "proj_add", w, &input, work, params)
}
