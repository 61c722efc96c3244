//! Projection added to the residual stream.

use super::Cx;
use super::combine::{self, Combine};
use super::driver::Launch;
use super::linear::{self, Input, Work};
use super::params::ProjAddParams;
use crate::program::{Program, ProjAdd, RowsOf};

pub fn kernels(p: &Program, s: &ProjAdd) -> Result<Vec<String>, String> {
    let mut names = linear::kernels(p, "proj_add", &[&s.w])?;
    names.extend((products(p, s) > 0).then(|| combine::KERNEL.to_owned()));
    Ok(names)
}

/// Floats of a row of products that wait for `combine`.
pub fn products(p: &Program, s: &ProjAdd) -> usize {
    if linear::together(p, &[&s.w]).is_some() { 0 } else { p.weight_decl(s.w.w).rows }
}

pub fn launches(cx: &Cx<'_>, s: &ProjAdd) -> Vec<Launch> {
    let input = Input { x: s.y, norm: s.norm.as_ref(), rows: RowsOf::Step };
    let x = cx.memory.bufs[s.x.0 as usize];
    if linear::together(cx.p, &[&s.w]).is_none() {
        let y = cx.memory.products;
        let cols = cx.p.weight_decl(s.w.w).rows;
        let combine = Combine { gate: None, y, out: x, cols, act: None, add: true };
        let products = linear::product(cx, &s.w, &input, y);
        return products.into_iter().chain([combine::launch(cx, &combine)]).collect();
    }
    let w = linear::linear(cx, &s.w);
    let work = Work { rows: w.rows as usize, paired: false };
    let params = |in_| ProjAddParams { step: cx.tables(), in_, w, x };
    linear::launches(cx, "proj_add", &s.w, &input, work, params)
}
