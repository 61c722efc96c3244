//! Final norm and output head, for the rows that asked.

use super::Cx;
use super::driver::Launch;
use super::linear::{self, Input};
use sterna_program::{Logits, RowsOf};

pub fn launches(cx: &Cx<'_>, s: &Logits) -> Vec<Launch> {
    let input = Input { x: s.x, norm: Some(&s.norm), rows: RowsOf::Outputs };
    linear::capped(cx, &[(&s.w, cx.memory.bufs[s.logits.0 as usize])], &input, s.soft_cap)
}
