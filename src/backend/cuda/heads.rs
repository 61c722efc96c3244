//! Head norms, RoPE and KV write after the products of `attn_in`: one warp per head of a row.

use super::cx::{Cx, Place, words};
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::op::Op;
use super::params::{HEADS_THREADS, HeadsParams};
use super::{linear, memory};
use sterna_program::{AttnIn, Program};

pub const KERNEL: KernelName = KernelName::single("heads");

/// The products that become queries, keys and values.
pub struct Heads<'a> {
    pub s: &'a AttnIn,
    /// Queries with their gates, if gated; otherwise queries are already in their buffer.
    pub queries: Option<Place>,
    pub keys: Place,
    /// `None`: after the keys of each row.
    pub values: Option<Place>,
}

impl Op for Heads<'_> {
    fn kernels(&self, _: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        Ok(vec![KERNEL])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let s = self.s;
        let q = cx.buf(s.q);
        let decl = cx.p.kv_decl(s.kv);
        let (kv, raw) = cx.memory.kvs[s.kv.0 as usize].for_attn_in(cx.memory.raw);
        let n_heads = cx.p.buf_decl(s.q).cols / decl.head_dim;
        let kv_cols = decl.n_kv_heads * decl.head_dim;
        let keys = cx.address(self.keys);
        let (values, pitch) = match self.values {
            Some(values) => (cx.address(values), kv_cols),
            None => (keys + 4 * kv_cols as u64, 2 * kv_cols),
        };
        let params = HeadsParams {
            step: cx.tables_for(s.kv),
            rope: s.rope.map_or(memory::NO_ROPE, |rope| cx.memory.ropes[rope.0 as usize]),
            q_norm: linear::norm(cx, s.q_norm.as_ref()),
            k_norm: linear::norm(cx, s.k_norm.as_ref()),
            kv,
            q,
            queries: self.queries.map_or(q, |queries| cx.address(queries)),
            gate: s.gate.map_or(0, |gate| cx.buf(gate)),
            keys,
            values,
            raw,
            n_heads: n_heads as u32,
            pitch: pitch as u32,
        };
        let warps = HEADS_THREADS as usize / 32;
        let heads = n_heads + 2 * decl.n_kv_heads;
        vec![Launch {
            kernel: cx.kernel(KERNEL),
            grid: [heads.div_ceil(warps) as u32, 1, cx.shape.rows as u32],
            threads: HEADS_THREADS,
            shared_bytes: (4 * warps * decl.head_dim) as u32,
            params: words(&params),
        }]
    }
}
