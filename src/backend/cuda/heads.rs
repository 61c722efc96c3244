//! Head norms, RoPE and KV write after the products of `attn_in`: one warp per head of a row.

use super::cx::{Cx, Place, words};
use super::driver::{Launch, Limits};
use super::kernel_name::KernelName;
use super::op::Op;
use super::params::{HEADS_THREADS, HeadsParams};
use super::{linear, memory};
use sterna_program::{AttnIn, KvDecl, Norm, Program, QkNorm};

/// The kernels for heads of up to 256 and of up to 512 elements.
pub const KERNELS: [KernelName; 2] =
    [KernelName::single("heads"), KernelName::single("heads").of_kind("of").of_heads(512)];

fn kernel(decl: &KvDecl) -> KernelName {
    KERNELS[usize::from(decl.head_dim > 256)]
}

/// The products that become queries, keys and values.
pub struct Heads<'a> {
    pub s: &'a AttnIn,
    /// Queries with their gates, if gated; otherwise queries are already in their buffer.
    pub queries: Option<Place>,
    /// `None`: the stage has only queries.
    pub keys: Option<Place>,
    /// `None`: after the keys of each row.
    pub values: Option<Place>,
}

impl Op for Heads<'_> {
    fn kernels(&self, p: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        Ok(vec![kernel(p.kv_decl(self.s.kv))])
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let s = self.s;
        let q = cx.buf(s.q);
        let decl = cx.p.kv_decl(s.kv);
        let (kv, raw) = cx.memory.kvs[s.kv.0 as usize].for_attn_in(cx.memory.raw);
        let n_heads = cx.p.buf_decl(s.q).cols / decl.head_dim;
        let kv_cols = decl.n_kv_heads * decl.head_dim;
        let keys = self.keys.map_or(0, |keys| cx.address(keys));
        let (values, pitch) = match self.values {
            Some(values) => (cx.address(values), kv_cols),
            None => (keys + 4 * kv_cols as u64, 2 * kv_cols),
        };
        // Norms of whole rows are a launch of their own.
        let of_heads = |norm: &Option<Norm>| {
            let norm = norm.as_ref().filter(|_| s.qk_norm != QkNorm::Rows);
            linear::norm(cx, norm)
        };
        let axes = s.rope.filter(|rope| cx.p.ropes[rope.0 as usize].axes.is_some());
        let params = HeadsParams {
            step: cx.tables_for(s.kv),
            rope: s.rope.map_or(memory::NO_ROPE, |rope| cx.memory.ropes[rope.0 as usize]),
            q_norm: of_heads(&s.q_norm),
            k_norm: of_heads(&s.k_norm),
            v_norm: linear::norm(cx, s.v_norm.as_ref()),
            kv,
            q,
            queries: self.queries.map_or(q, |queries| cx.address(queries)),
            gate: s.gate.map_or(0, |gate| cx.buf(gate)),
            keys,
            values,
            raw,
            axes: axes.map_or(0, |rope| cx.axes(rope)),
            texts: axes.map_or(0, |_| cx.memory.step.texts()),
            n_heads: n_heads as u32,
            pitch: pitch as u32,
            q_factor: s.q_scale.map_or(0.0, |scale| scale.factor),
            q_period: s.q_scale.map_or(0, |scale| scale.period),
            norm_after: u32::from(s.qk_norm == QkNorm::Rotated),
            reserved: 0,
        };
        let warps = HEADS_THREADS as usize / 32;
        let heads = n_heads + if self.keys.is_some() { 2 * decl.n_kv_heads } else { 0 };
        vec![Launch {
            kernel: cx.kernel(kernel(decl)),
            grid: [heads.div_ceil(warps) as u32, 1, cx.shape.rows as u32],
            threads: HEADS_THREADS,
            shared_bytes: (4 * warps * decl.head_dim) as u32,
            params: words(&params),
        }]
    }
}
