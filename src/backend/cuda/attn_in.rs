//! Norm, Q, K, V, RoPE, KV write: a pair of rows that RoPE rotates together shares a warp. With head norms or
//! a gate, and for layers that no single kernel computes together, `heads` does the work after the products.
//! For caches of codes or blocks, `append` does the rest, one block per row, KV head, and keys or values; in
//! steps of one row attention may do it instead.

use super::cx::{Cx, Place, words};
use super::driver::{Address, Launch, Limits};
use super::heads::Heads;
use super::kernel_name::KernelName;
use super::kv::{self, KvLayout};
use super::linear::geometry::Work;
use super::linear::layers::Layers;
use super::linear::{self, Input};
use super::op::{Op, Ops};
use super::params::{
    APPEND_BLOCKS_SHARED_BYTES, APPEND_THREADS, AppendBlocksParams, AppendParams, AttnInParams,
};
use super::weight::layer_params;
use super::{attend, memory};
use crate::Macs;
use sterna_program::{AttnIn, Linear, PAGE, Program, RowsOf};

/// All three products in one kernel, with RoPE and the KV write unless `heads` follows.
struct Fused<'a> {
    s: &'a AttnIn,
    q: Place,
    has_heads: bool,
}

/// The KV write to a cache of codes or blocks.
struct Append<'a>(&'a AttnIn);

pub fn lower<'a>(p: &Program, s: &'a AttnIn) -> Ops<'a> {
    // The norm and its input are in `input`; RoPE and the head norms belong to the operations.
    let AttnIn { x: _, norm: _, wq, wk, wv, q_norm, k_norm, rope: _, kv: _, q, gate } = s;
    let is_fused = linear::together(p, &linears(s)).is_some();
    let has_heads = !is_fused || gate.is_some() || q_norm.is_some() || k_norm.is_some();
    let kv_cols = kv_cols(p, s);
    let queries = gate.map(|_| Place::Kept(2 * kv_cols));
    let (q, keys, values) = (queries.unwrap_or(Place::Buf(*q)), Place::Kept(0), Place::Kept(kv_cols));
    let mut ops: Ops<'a> = Vec::new();
    if is_fused {
        ops.push(Box::new(Fused { s, q, has_heads }));
    } else {
        let layers = vec![(wq, q), (wk, keys), (wv, values)];
        ops.push(Box::new(Layers { stage: "attn_in", layers, input: input(s), soft_cap: None }));
    }
    if has_heads {
        // One kernel writes keys and values in the layout that `append` reads.
        let values = Some(values).filter(|_| !is_fused);
        ops.push(Box::new(Heads { s, queries, keys, values }));
    }
    ops.push(Box::new(Append(s)));
    ops
}

/// The operations that follow products computed elsewhere: keys and values are at two addresses on the GPU,
/// queries in their buffer.
pub fn after_products<'a>(s: &'a AttnIn, keys_and_values: [Address; 2]) -> Ops<'a> {
    let [keys, values] = keys_and_values.map(Place::At);
    vec![Box::new(Heads { s, queries: None, keys, values: Some(values) }), Box::new(Append(s))]
}

fn linears(s: &AttnIn) -> [&Linear; 3] {
    [&s.wq, &s.wk, &s.wv]
}

fn input(s: &AttnIn) -> Input<'_> {
    Input { x: s.x, norm: Some(&s.norm), rows: RowsOf::Step }
}

/// Columns of the keys, and of the values.
fn kv_cols(p: &Program, s: &AttnIn) -> usize {
    let decl = p.kv_decl(s.kv);
    decl.n_kv_heads * decl.head_dim
}

impl Op for Fused<'_> {
    fn kernels(&self, p: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        linear::fused_kernels(p, "attn_in", &linears(self.s), &input(self.s))
    }

    fn kept(&self, p: &Program) -> usize {
        let gated = self.s.gate.map_or(0, |_| p.weight_decl(self.s.wq.w).rows);
        if self.has_heads { 2 * kv_cols(p, self.s) + gated } else { 0 }
    }

    fn add_macs(&self, p: &Program, all: &mut Macs) {
        linear::add_macs(p, &linears(self.s), all);
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Self { s, q, has_heads } = *self;
        let [wq, wk, wv] = linears(s).map(|w| layer_params(cx.weights, w));
        let work = Work { rows: (wq.rows + wk.rows + wv.rows) as usize, paired: true };
        let (step, q) = (cx.tables_for(s.kv), cx.address(q));
        let (kv, raw) = cx.memory.kvs[s.kv.0 as usize].for_attn_in(cx.memory.raw);
        let rope = s.rope.filter(|_| !has_heads);
        let rope = rope.map_or(memory::NO_ROPE, |rope| cx.memory.ropes[rope.0 as usize]);
        let raw = if has_heads { cx.memory.products } else { raw };
        let params = |in_| AttnInParams { step, in_, wq, wk, wv, rope, kv, q, raw };
        linear::launches(cx, "attn_in", &s.wq, &input(s), work, params)
    }
}

impl Op for Append<'_> {
    fn kernels(&self, p: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        let decl = p.kv_decl(self.0.kv);
        if !decl.head_dim.is_multiple_of(2) {
            return Err(format!("attn_in with heads of {}", decl.head_dim));
        }
        // The stage that reads the cache reports its errors.
        let is_known = kv::is_appended(decl) && kv::check(decl).is_ok();
        Ok(is_known.then(|| kv::kernel("append", decl)).into_iter().collect())
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let s = self.0;
        let decl = cx.p.kv_decl(s.kv);
        if attend::appends(cx, s.kv) {
            return Vec::new();
        }
        let (step, raw, q) = (cx.tables_for(s.kv), cx.memory.raw, cx.buf(s.q));
        let group = (cx.p.buf_decl(s.q).cols / kv_cols(cx.p, s)) as u32;
        let (params, shared) = match cx.memory.kvs[s.kv.0 as usize] {
            KvLayout::Elements(_) => return Vec::new(),
            KvLayout::Codes(kv) => {
                let warps = APPEND_THREADS as usize / 32;
                // The row that writes each position; the mean, in f64 and in f32; a page of halves; and the
                // codes of each warp's vector.
                let shared = 4 * PAGE + (8 + 4 + 2 * PAGE + warps) * decl.head_dim;
                (words(&AppendParams { step, kv, raw, q, group, reserved: 0 }), shared)
            }
            KvLayout::Blocks(kv) => {
                let params = AppendBlocksParams { step, kv, raw, q, group, reserved: 0 };
                (words(&params), APPEND_BLOCKS_SHARED_BYTES as usize)
            }
        };
        vec![Launch {
            kernel: cx.kernel(kv::kernel("append", decl)),
            grid: [2 * decl.n_kv_heads as u32, 1, cx.shape.rows as u32],
            threads: APPEND_THREADS,
            shared_bytes: shared.next_multiple_of(16) as u32,
            params,
        }]
    }
}
