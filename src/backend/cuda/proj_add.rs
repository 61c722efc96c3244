//! Projection added to the residual stream.

use super::Cx;
use super::driver::Launch;
use super::linear::{self, Input, Work};
use super::params::ProjAddParams;
use crate::program::{ProjAdd, RowsOf};

pub fn launch(cx: &Cx<'_>, s: &ProjAdd) -> Launch {
    let input = Input { x: s.y, norm: s.norm.as_ref(), rows: RowsOf::Step };
    let w = linear::linear(cx, &s.w);
    let work = Work { rows: w.rows as usize, paired: false };
    linear::launch(cx, "proj_add", &s.w, &input, work, |in_| ProjAddParams {
        step: cx.tables(),
        in_,
        w,
        x: cx.memory.bufs[s.x.0 as usize],
    })
}
