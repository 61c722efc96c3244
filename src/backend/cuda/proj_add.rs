//! Projection added to the residual stream. Where the product is normed first, the layer leaves it, and a
//! block a row norms and adds it.

use super::Cx;
use super::combine::{self, Combine};
use super::driver::Launch;
use super::linear::{self, Input, Work};
use super::params::ProjAddParams;
use super::post_norm;
use sterna_program::{Program, ProjAdd, RowsOf};

pub fn kernels(p: &Program, s: &ProjAdd) -> Result<Vec<String>, String> {
    if s.post.is_some() {
        // A product that is merely written, as logits are.
        let mut names = linear::kernels(p, "logits", &[&s.w])?;
        names.push(post_norm::KERNEL.to_owned());
        return Ok(names);
    }
    let mut names = linear::kernels(p, "proj_add", &[&s.w])?;
    names.extend((products(p, s) > 0).then(|| combine::KERNEL.to_owned()));
    Ok(names)
}

/// Floats of a row of products that wait for `combine` or `post_norm`.
pub fn products(p: &Program, s: &ProjAdd) -> usize {
    let waits = s.post.is_some() || linear::together(p, &[&s.w]).is_none();
    if waits { p.weight_decl(s.w.w).rows } else { 0 }
}

pub fn launches(cx: &Cx<'_>, s: &ProjAdd) -> Vec<Launch> {
    let input = Input { x: s.y, norm: s.norm.as_ref(), rows: RowsOf::Step };
    let x = cx.memory.bufs[s.x.0 as usize];
    let (y, cols) = (cx.memory.products, cx.p.weight_decl(s.w.w).rows);
    if let Some(post) = &s.post {
        let products = linear::product(cx, &s.w, &input, y);
        return products.into_iter().chain([post_norm::launch(cx, post, y, x, cols)]).collect();
    }
    if linear::together(cx.p, &[&s.w]).is_none() {
        let combine = Combine { gate: None, y, out: x, cols, act: None, add: true, each: 1 };
        let products = linear::product(cx, &s.w, &input, y);
        return products.into_iter().chain([combine::launch(cx, &combine)]).collect();
    }
    let w = linear::linear(cx, &s.w);
    let work = Work { rows: w.rows as usize, paired: false };
    let params = |in_| ProjAddParams { step: cx.tables(), in_, w, x };
    linear::launches(cx, "proj_add", &s.w, &input, work, params)
}
