//! Norm and input projections of a gated delta net.

use super::linear::{self, Input, Layer};
use super::{Cx, Device, Dispatch};
use sterna_program::{DeltaIn, Program, RowsOf};

pub fn missing(device: &Device<'_>, p: &Program, s: &DeltaIn) -> Vec<String> {
    linear::missing(device, p, "delta_in", &[&s.wu, &s.wz, &s.wa, &s.wb])
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a DeltaIn) -> Vec<Dispatch<'a>> {
    let DeltaIn { x, ref norm, ref wu, ref wz, ref wa, ref wb, u, z, a, b } = *s;
    let input = Input { x, norm: Some(norm), rows: RowsOf::Step };
    let layers = [(wu, u), (wz, z), (wa, a), (wb, b)].map(|(linear, buf)| {
        let (out, out_cols) = (&cx.memory.bufs[buf.0 as usize], cx.p.buf_decl(buf).cols);
        Layer { linear, out, out_cols, out_at: 0, what: 0 }
    });
    // Products that are stored unchanged use the kernel of the logits.
    linear::dispatches(cx, "logits", input, layers.into())
}
