//! Projection added to the residual stream.

use super::linear::{self, Input, Layer};
use super::{Cx, Dispatch};
use crate::program::{ProjAdd, RowsOf};

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a ProjAdd) -> Vec<Dispatch<'a>> {
    let input = Input { x: s.y, norm: s.norm.as_ref(), rows: RowsOf::Step };
    let out = &cx.memory.bufs[s.x.0 as usize];
    let layer = Layer { linear: &s.w, out, out_cols: cx.p.buf_decl(s.x).cols, out_at: 0, what: 0 };
    linear::dispatches(cx, "proj_add", input, vec![layer])
}
