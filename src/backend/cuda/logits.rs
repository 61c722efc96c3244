//! Final norm and output head, for the rows that asked.

use super::Cx;
use super::driver::Launch;
use super::linear::{self, Input, Work};
use super::params::LogitsParams;
use crate::program::{Logits, RowsOf};

pub fn launch(cx: &Cx<'_>, s: &Logits) -> Launch {
    let input = Input { x: s.x, norm: Some(&s.norm), rows: RowsOf::Outputs };
    let w = linear::linear(cx, &s.w);
    let work = Work { rows: w.rows as usize, paired: false };
    linear::launch(cx, "logits", &s.w, &input, work, |in_| LogitsParams {
        step: cx.tables(),
        in_,
        w,
        logits: cx.memory.bufs[s.logits.0 as usize],
    })
}
