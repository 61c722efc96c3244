//! Norm and input projections of a recurrent layer.

use super::linear::{self, Input, Layer};
use super::{Cx, Device, Dispatch};
use sterna_program::{Linear, Program, ProjIn, RowsOf};

pub fn missing(device: &Device<'_>, p: &Program, s: &ProjIn) -> Vec<String> {
    let layers: Vec<&Linear> = s.products.iter().map(|(linear, _)| linear).collect();
    linear::missing(device, p, "proj_in", &layers)
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a ProjIn) -> Vec<Dispatch<'a>> {
    let ProjIn { x, ref norm, ref products } = *s;
    let input = Input { x, norm: Some(norm), rows: RowsOf::Step };
    let layers = products.iter().map(|(linear, buf)| {
        let (out, out_cols) = (&cx.memory.bufs[buf.0 as usize], cx.p.buf_decl(*buf).cols);
        Layer { linear, out, out_cols, out_at: 0, what: 0 }
    });
    // Products that are stored unchanged use the kernel of the logits.
    linear::dispatches(cx, "logits", input, layers.collect())
}
