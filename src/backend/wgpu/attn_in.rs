//! Norm, Q, K, V, rotary embedding, KV write: the products, then a workgroup a head that turns it and keeps it. Where a cache is
//! windowed, pages that the step has filled are encoded then.

use super::linear::{self, Input, Layer};
use super::shader::Kernel;
use super::{Cx, Device, Dispatch, Grid, kv};
use crate::program::{AttnIn, Program, RopeStyle, RowsOf};

pub fn missing(cx: &Device<'_>, p: &Program, s: &AttnIn) -> Vec<String> {
    let mut missing = linear::missing(cx, p, "attn_in", &[&s.wq, &s.wk, &s.wv]);
    missing.extend(kv::obstacle(p.kv_decl(s.kv)));
    missing
}

/// Bytes of the keys and values of a step.
pub fn fresh_bytes(p: &Program, s: &AttnIn) -> u64 {
    8 * v_at(p, s) as u64
}

/// Where values begin behind the keys.
fn v_at(p: &Program, s: &AttnIn) -> usize {
    let kv = p.kv_decl(s.kv);
    p.limits.rows * kv.n_kv_heads * kv.head_dim
}

pub fn dispatches<'a>(cx: &Cx<'a>, s: &'a AttnIn) -> Vec<Dispatch<'a>> {
    let (decl, memory) = (cx.p.kv_decl(s.kv), cx.memory);
    let (q, kv_cols, v_at) = (&memory.bufs[s.q.0 as usize], decl.n_kv_heads * decl.head_dim, v_at(cx.p, s));
    let q_cols = cx.p.buf_decl(s.q).cols;
    let layer = |linear, out, out_cols, out_at| Layer { linear, out, out_cols, out_at, what: 0 };
    let layers = vec![
        layer(&s.wq, q, q_cols, 0),
        layer(&s.wk, &memory.fresh, kv_cols, 0),
        layer(&s.wv, &memory.fresh, kv_cols, v_at),
    ];
    let input = Input { x: s.x, norm: Some(&s.norm), rows: RowsOf::Step };
    // Products that are merely written, as logits are.
    let mut all = linear::dispatches(cx, "logits", input, layers);

    let rope = s.rope.map(|rope| (&cx.p.ropes[rope.0 as usize], &memory.turns[rope.0 as usize]));
    let n_heads = q_cols / decl.head_dim;
    let mut params = linear::norm(cx, s.q_norm.as_ref()).to_vec();
    params.extend(linear::norm(cx, s.k_norm.as_ref()));
    params.extend(kv::params(decl, &cx.p.limits));
    params.extend([
        n_heads as u32,
        v_at as u32,
        rope.map_or(0, |(rope, _)| rope.inv_freq.len() as u32),
        u32::from(rope.is_some_and(|(rope, _)| rope.style == RopeStyle::Adjacent)),
    ]);
    let [keys, values] = &memory.kvs[s.kv.0 as usize];
    let codec = kv::codec(decl).name;
    all.push(Dispatch {
        kernels: vec![(usize::MAX, Kernel::AttnIn(codec))],
        params,
        buffers: vec![
            &memory.step.buffer,
            &memory.constants,
            rope.map_or(&memory.constants, |(_, turns)| turns),
            &memory.fresh,
            q,
            keys,
            values,
        ],
        grid: Grid::Rows { x: (n_heads + 2 * decl.n_kv_heads) as u32, rows: RowsOf::Step },
    });
    if decl.is_windowed() {
        all.push(Dispatch {
            kernels: vec![(usize::MAX, Kernel::Append(codec))],
            params: kv::params(decl, &cx.p.limits),
            buffers: vec![&memory.step.buffer, keys, values],
            grid: Grid::Filled { x: 2 * decl.n_kv_heads as u32 },
        });
    }
    all
}
