//! Final norm and output head, for the rows that request logits.

use super::cx::Cx;
use super::driver::Launch;
use super::linear::{self, Input};
use sterna_program::{Logits, RowsOf};

pub fn launches(cx: &Cx<'_>, s: &Logits) -> Vec<Launch> {
    let Logits { x, ref norm, ref w, soft_cap, logits } = *s;
    let input = Input { x, norm: Some(norm), rows: RowsOf::Outputs };
    linear::capped(cx, &[(w, cx.memory.bufs[logits.0 as usize])], &input, soft_cap)
}
