//! Norm, Q, K, V, rotary embedding, KV write: pairs of rows that turn together share a warp.

use super::driver::Launch;
use super::linear::{self, Input, Work};
use super::params::AttnInParams;
use super::{Cx, memory};
use crate::program::{AttnIn, Program, RowsOf};

pub fn kernels(p: &Program, s: &AttnIn) -> Result<Vec<String>, String> {
    if s.q_norm.is_some() || s.k_norm.is_some() {
        return Err("attn_in with norms of heads".into());
    }
    let head_dim = p.kv_decl(s.kv).head_dim;
    if !head_dim.is_multiple_of(2) {
        return Err(format!("attn_in with heads of {head_dim}"));
    }
    linear::kernels(p, "attn_in", &[&s.wq, &s.wk, &s.wv])
}

pub fn launch(cx: &Cx<'_>, s: &AttnIn) -> Launch {
    let input = Input { x: s.x, norm: Some(&s.norm), rows: RowsOf::Step };
    let [wq, wk, wv] = [&s.wq, &s.wk, &s.wv].map(|w| linear::linear(cx, w));
    let work = Work { rows: (wq.rows + wk.rows + wv.rows) as usize, paired: true };
    linear::launch(cx, "attn_in", &s.wq, &input, work, |in_| AttnInParams {
        step: cx.memory.step.tables(),
        in_,
        wq,
        wk,
        wv,
        rope: s.rope.map_or(memory::NO_ROPE, |rope| cx.memory.ropes[rope.0 as usize]),
        kv: cx.memory.kvs[s.kv.0 as usize],
        q: cx.memory.bufs[s.q.0 as usize],
    })
}
