//! Norm and the projections that a gated delta net takes.

use super::linear::{self, Input, Layer};
use super::{Cx, Device, Dispatch};
use sterna_program::{DeltaIn, Program, RowsOf};

pub fn missing(device: &Device<'_>, p: &Program, s: &DeltaIn) -> Vec<String> {
    linear::missing(device, p, "delta_in", &[&s.wu, &s.wz, &s.wa, &s.wb])
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a DeltaIn) -> Vec<Dispatch<'a>> {
    let input = Input { x: s.x, norm: Some(&s.norm), rows: RowsOf::Step };
    let layers = [(&s.wu, s.u), (&s.wz, s.z), (&s.wa, s.a), (&s.wb, s.b)].map(|(linear, buf)| {
        let (out, out_cols) = (&cx.memory.bufs[buf.0 as usize], cx.p.buf_decl(buf).cols);
        Layer { linear, out, out_cols, out_at: 0, what: 0 }
    });
    // Products that are merely written, as logits are.
    linear::dispatches(cx, "logits", input, layers.into())
}
