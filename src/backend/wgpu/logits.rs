//! Final norm and output head, for the output rows.

use super::linear::{self, Input, Layer};
use super::{Cx, Dispatch, adapters};
use sterna_program::{Logits, RowsOf};

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a Logits) -> Vec<Dispatch<'a>> {
    let Logits { x, ref norm, ref w, soft_cap, logits } = *s;
    let input = Input { x, norm: Some(norm), rows: RowsOf::Outputs };
    let out = &cx.memory.bufs[logits.0 as usize];
    let out_cols = cx.p.buf_decl(logits).cols;
    // Adapters change the products before they are capped.
    let caps_later = cx.adapted && !w.lora.is_empty();
    // 0 means no cap, because a cap is above 0.
    let what = soft_cap.filter(|_| !caps_later).map_or(0, f32::to_bits);
    let mut all =
        linear::dispatches(cx, "logits", input, vec![Layer { linear: w, out, out_cols, out_at: 0, what }]);
    if let Some(cap) = soft_cap.filter(|_| caps_later) {
        all.push(adapters::activate(cx, out, (out_cols, RowsOf::Outputs), adapters::Finish::Cap(cap)));
    }
    all
}
