//! Norm and the projections that a gated delta net takes: those that multiply alike in one launch.

use super::Cx;
use super::driver::Launch;
use super::linear::{self, Input};
use sterna_program::{DeltaIn, Linear, Program, RowsOf};

fn linears(s: &DeltaIn) -> [&Linear; 4] {
    [&s.wu, &s.wz, &s.wa, &s.wb]
}

pub fn kernels(p: &Program, s: &DeltaIn) -> Result<Vec<String>, String> {
    let of_layer = |linear: &Linear| linear::kernels(p, "logits", &[linear]);
    let all: Result<Vec<_>, _> = linears(s).into_iter().map(of_layer).collect();
    Ok(all.map_err(|missing| missing.replace("logits", "delta_in"))?.concat())
}

pub fn launches(cx: &Cx<'_>, s: &DeltaIn) -> Vec<Launch> {
    let input = Input { x: s.x, norm: Some(&s.norm), rows: RowsOf::Step };
    let to = [s.u, s.z, s.a, s.b].map(|buf| cx.memory.bufs[buf.0 as usize]);
    let layers: Vec<_> = linears(s).into_iter().zip(to).collect();
    linear::of_one_input(cx, &layers, &input)
}
