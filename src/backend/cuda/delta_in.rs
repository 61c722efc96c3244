//! Norm and the input projections of a gated delta net: neighbours with the same kind of product share a
//! launch.

use super::cx::Cx;
use super::driver::Launch;
use super::linear::{self, Input};
use sterna_program::{DeltaIn, Linear, Program, RowsOf};

pub fn kernels(p: &Program, s: &DeltaIn) -> Result<Vec<String>, String> {
    let of_layer = |linear: &Linear| linear::kernels(p, "logits", &[linear]);
    let all: Result<Vec<_>, _> = [&s.wu, &s.wz, &s.wa, &s.wb].into_iter().map(of_layer).collect();
    Ok(all.map_err(|missing| missing.replace("logits", "delta_in"))?.concat())
}

pub fn launches(cx: &Cx<'_>, s: &DeltaIn) -> Vec<Launch> {
    let DeltaIn { x, ref norm, ref wu, ref wz, ref wa, ref wb, u, z, a, b } = *s;
    let input = Input { x, norm: Some(norm), rows: RowsOf::Step };
    let layers = [(wu, u), (wz, z), (wa, a), (wb, b)];
    let layers = layers.map(|(linear, buf)| (linear, cx.memory.bufs[buf.0 as usize]));
    linear::of_one_input(cx, &layers, &input)
}
