//! Final norm and output head, for the rows that asked.

use super::linear::{self, Input, Layer};
use super::{Cx, Dispatch};
use crate::program::{Logits, RowsOf};

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a Logits) -> Vec<Dispatch<'a>> {
    let input = Input { x: s.x, norm: Some(&s.norm), rows: RowsOf::Outputs };
    let out = &cx.memory.bufs[s.logits.0 as usize];
    let layer = Layer { linear: &s.w, out, out_cols: cx.p.buf_decl(s.logits).cols, out_at: 0, what: 0 };
    linear::dispatches(cx, "logits", input, vec![layer])
}
