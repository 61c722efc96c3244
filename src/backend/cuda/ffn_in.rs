//! Norm and the first half of the feed-forward network: a row of the gate and the same row of up share a warp.

use super::Cx;
use super::driver::Launch;
use super::linear::{self, Input, Work};
use super::params::{ACT_GELU_TANH, ACT_RELU2, ACT_SILU, FfnInParams};
use super::weight::NO_LINEAR;
use crate::program::{Act, FfnIn, Program, RowsOf};

pub fn kernels(p: &Program, s: &FfnIn) -> Result<Vec<String>, String> {
    let linears: Vec<_> = [s.gate.as_ref(), Some(&s.up)].into_iter().flatten().collect();
    linear::kernels(p, "ffn_in", &linears)
}

pub fn launch(cx: &Cx<'_>, s: &FfnIn) -> Launch {
    let input = Input { x: s.x, norm: Some(&s.norm), rows: RowsOf::Step };
    let gate = s.gate.as_ref().map_or(NO_LINEAR, |gate| linear::linear(cx, gate));
    let up = linear::linear(cx, &s.up);
    let work = Work { rows: (gate.rows + up.rows) as usize, paired: s.gate.is_some() };
    linear::launch(cx, "ffn_in", &s.up, &input, work, |in_| FfnInParams {
        step: cx.tables(),
        in_,
        gate,
        up,
        h: cx.memory.bufs[s.h.0 as usize],
        act: match s.act {
            Act::Relu2 => ACT_RELU2,
            Act::Silu => ACT_SILU,
            Act::GeluTanh => ACT_GELU_TANH,
        },
        reserved: 0,
    })
}
