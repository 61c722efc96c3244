//! Head norms, RoPE and KV write after the products of `attn_in`: one warp per head of a row.

use super::cx::{Cx, words};
use super::driver::{Address, Launch};
use super::params::{HEADS_THREADS, HeadsParams};
use super::{linear, memory};
use sterna_program::AttnIn;

pub const KERNEL: &str = "heads";

/// Addresses of the products that become keys and values.
pub struct KeysAndValues {
    /// Queries with their gates, if gated; otherwise queries are already in their buffer.
    pub queries: Option<Address>,
    pub keys: Address,
    pub values: Address,
    /// Row stride in floats.
    pub pitch: usize,
}

pub fn launch(cx: &Cx<'_>, s: &AttnIn, from: &KeysAndValues) -> Launch {
    let q = cx.memory.bufs[s.q.0 as usize];
    let decl = cx.p.kv_decl(s.kv);
    let (kv, raw) = cx.memory.kvs[s.kv.0 as usize].for_attn_in(cx.memory.raw);
    let n_heads = cx.p.buf_decl(s.q).cols / decl.head_dim;
    let params = HeadsParams {
        step: cx.tables_for(s.kv),
        rope: s.rope.map_or(memory::NO_ROPE, |rope| cx.memory.ropes[rope.0 as usize]),
        q_norm: linear::norm(cx, s.q_norm.as_ref()),
        k_norm: linear::norm(cx, s.k_norm.as_ref()),
        kv,
        q,
        queries: from.queries.unwrap_or(q),
        gate: s.gate.map_or(0, |gate| cx.memory.bufs[gate.0 as usize]),
        keys: from.keys,
        values: from.values,
        raw,
        n_heads: n_heads as u32,
        pitch: from.pitch as u32,
    };
    let warps = HEADS_THREADS as usize / 32;
    let heads = n_heads + 2 * decl.n_kv_heads;
    Launch {
        kernel: cx.kernel(KERNEL),
        grid: [heads.div_ceil(warps) as u32, 1, cx.shape.rows as u32],
        threads: HEADS_THREADS,
        shared_bytes: (4 * warps * decl.head_dim) as u32,
        params: words(&params),
    }
}
