//! Final norm and output head, for the output rows.

use super::linear::{self, Input, Layer};
use super::{Cx, Dispatch};
use sterna_program::{Logits, RowsOf};

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a Logits) -> Vec<Dispatch<'a>> {
    let Logits { x, ref norm, ref w, soft_cap, logits } = *s;
    let input = Input { x, norm: Some(norm), rows: RowsOf::Outputs };
    let out = &cx.memory.bufs[logits.0 as usize];
    // 0 means no cap, because a cap is above 0.
    let cap = soft_cap.map_or(0, f32::to_bits);
    let layer = Layer { linear: w, out, out_cols: cx.p.buf_decl(logits).cols, out_at: 0, what: cap };
    linear::dispatches(cx, "logits", input, vec![layer])
}
