//! Norm, Q, K, V, RoPE, KV write: a pair of rows that RoPE rotates together shares a warp. With head norms or
//! a gate, and for layers that no single kernel computes together, `heads` does the work after the products.
//! For caches of codes or blocks, `append` does the rest, one block per row, KV head, and keys or values; in
//! steps of one row attention may do it instead.

use super::adapters;
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
    APPEND_BLOCKS_SHARED_BYTES, APPEND_THREADS, APPEND_TRELLIS_THREADS, AppendBlocksParams, AppendParams,
    AttnInParams, OCTET_ROWS,
};
use super::post_norm::RowNorm;
use super::weight::layer_params;
use super::{attend, memory};
use crate::Macs;
use sterna_program::{AttnIn, Linear, Program, QkNorm, RowsOf};

/// All three products in one kernel, with RoPE and the KV write unless `heads` follows.
struct Fused<'a> {
    s: &'a AttnIn,
    q: Place,
    has_heads: bool,
}

/// The KV write to a cache of codes or blocks.
struct Append<'a>(&'a AttnIn);

pub fn lower<'a>(p: &Program, s: &'a AttnIn, adapted: bool) -> Ops<'a> {
    // The norm and its input are in `input`; RoPE and the head norms belong to the operations, of which only
    // `heads` knows places on several axes.
    let AttnIn { x: _, norm: _, wq, wk, wv, q_norm, k_norm, qk_norm, v_norm, rope, q_scale, kv: _, q, gate } =
        s;
    let of_rows = *qk_norm == QkNorm::Rows;
    let fused = fused(s).filter(|linears| linear::together(p, linears).is_some());
    let is_fused = fused.is_some() && !adapted;
    let is_normed = [q_norm, k_norm, v_norm].into_iter().any(Option::is_some);
    let has_axes = rope.is_some_and(|rope| p.ropes[rope.0 as usize].axes.is_some());
    let has_heads = !is_fused || gate.is_some() || is_normed || q_scale.is_some() || has_axes;
    let kv_cols = kv_cols(p, s);
    let queries = gate.map(|_| Place::Kept(2 * kv_cols));
    let (q, keys, values) = (queries.unwrap_or(Place::Buf(*q)), Place::Kept(0), Place::Kept(kv_cols));
    let mut ops: Ops<'a> = Vec::new();
    if is_fused {
        ops.push(Box::new(Fused { s, q, has_heads }));
    } else {
        let others = [wk.as_ref().map(|wk| (wk, keys)), wv.as_ref().map(|wv| (wv, values))];
        let layers: Vec<_> = [(wq, q)].into_iter().chain(others.into_iter().flatten()).collect();
        let of_adapters = if adapted { adapters::lower(layers.clone(), input(s)) } else { Vec::new() };
        let (stage, fused) = ("attn_in", fused.map(|linears| work(p, linears)));
        let products = Layers { stage, layers, input: input(s), from: None, soft_cap: None, fused };
        ops.push(Box::new(products));
        ops.extend(of_adapters);
    }
    if of_rows {
        let q_cols = p.buf_decl(s.q).cols;
        for (norm, x, cols) in [(q_norm, q, q_cols), (k_norm, keys, kv_cols)] {
            let norm = norm.as_ref().map(|norm| RowNorm { norm, x, cols });
            ops.extend(norm.map(|norm| Box::new(norm) as Box<dyn Op>));
        }
    }
    if has_heads {
        // One kernel writes keys and values in the layout that `append` reads.
        let values = Some(if wv.is_some() { values } else { keys }).filter(|_| !is_fused);
        ops.push(Box::new(Heads { s, queries, keys: wk.as_ref().map(|_| keys), values }));
    }
    ops.push(Box::new(Append(s)));
    ops
}

/// The operations that follow products computed elsewhere: keys and values are at two addresses on the GPU,
/// queries in their buffer.
pub fn after_products<'a>(s: &'a AttnIn, keys_and_values: [Address; 2]) -> Ops<'a> {
    let [keys, values] = keys_and_values.map(|at| Some(Place::At(at)));
    vec![Box::new(Heads { s, queries: None, keys, values }), Box::new(Append(s))]
}

/// True if the products of a stage may be computed elsewhere: it has all three, and nothing else needs them.
pub fn has_separable_products(s: &AttnIn) -> bool {
    s.gate.is_none() && s.norm.is_some() && fused(s).is_some()
}

/// The layers that one kernel may compute together: all three, if norms are not of whole rows and the layers
/// have no bounds.
fn fused(s: &AttnIn) -> Option<[&Linear; 3]> {
    let all = [&s.wq, s.wk.as_ref()?, s.wv.as_ref()?];
    let is_clamped = all.iter().any(|linear| linear.clamp.is_some());
    Some(all).filter(|_| s.qk_norm != QkNorm::Rows && !is_clamped)
}

/// Work of the kernel for all three products.
fn work(p: &Program, linears: [&Linear; 3]) -> Work {
    Work::new(linears.iter().map(|linear| p.weight_decl(linear.w).rows).sum(), true)
}

fn input(s: &AttnIn) -> Input<'_> {
    Input { x: s.x, norm: s.norm.as_ref(), rows: RowsOf::Step }
}

/// Columns of the keys, and of the values.
pub fn kv_cols(p: &Program, s: &AttnIn) -> usize {
    let decl = p.kv_decl(s.kv);
    decl.n_kv_heads * decl.head_dim
}

impl Fused<'_> {
    fn linears(&self) -> [&Linear; 3] {
        fused(self.s).expect("layers with a common kernel")
    }
}

impl Op for Fused<'_> {
    fn kernels(&self, p: &Program, _: Limits) -> Result<Vec<KernelName>, String> {
        linear::fused_kernels(p, "attn_in", &self.linears(), &input(self.s))
    }

    fn kept(&self, p: &Program) -> usize {
        let gated = self.s.gate.map_or(0, |_| p.weight_decl(self.s.wq.w).rows);
        if self.has_heads { 2 * kv_cols(p, self.s) + gated } else { 0 }
    }

    fn add_macs(&self, p: &Program, all: &mut Macs) {
        linear::add_macs(p, &self.linears(), all);
    }

    fn launches(&self, cx: &Cx<'_>) -> Vec<Launch> {
        let Self { s, q, has_heads } = *self;
        let [wq, wk, wv] = self.linears().map(|w| layer_params(cx.weights, w));
        let (step, q) = (cx.tables_for(s.kv), cx.address(q));
        let (kv, raw) = cx.memory.kvs[s.kv.0 as usize].for_attn_in(cx.memory.raw);
        let rope = s.rope.filter(|_| !has_heads);
        let rope = rope.map_or(memory::NO_ROPE, |rope| cx.memory.ropes[rope.0 as usize]);
        let raw = if has_heads { cx.memory.products } else { raw };
        // The pairs of each 8 slots are of one layer and head, and their first and second rows either in an
        // octet each or neighbours.
        let is_whole = |n: u32| n.is_multiple_of(2 * OCTET_ROWS);
        let in_octets = is_whole(wq.rows) && is_whole(wk.rows) && is_whole(kv.head_dim);
        let in_octets = in_octets && (rope.adjacent == 1 || rope.pairs.is_multiple_of(OCTET_ROWS));
        let work = work(cx.p, self.linears()).in_octets(in_octets);
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
        // Without keys of its own, the stage has only queries to rotate.
        let raw = if s.wk.is_some() { cx.memory.raw } else { 0 };
        let (step, q) = (cx.tables_for(s.kv), cx.buf(s.q));
        let group = (cx.p.buf_decl(s.q).cols / kv_cols(cx.p, s)) as u32;
        let threads = if kv::table_bytes(decl) > 0 { APPEND_TRELLIS_THREADS } else { APPEND_THREADS };
        let (params, shared) = match cx.memory.kvs[s.kv.0 as usize] {
            KvLayout::Elements(_) => return Vec::new(),
            KvLayout::Codes(kv) => {
                let params = AppendParams { step, kv, raw, q, group, reserved: 0 };
                (words(&params), kv::append_shared_bytes(decl, threads))
            }
            KvLayout::Blocks(kv) => {
                let params = AppendBlocksParams { step, kv, raw, q, group, reserved: 0 };
                (words(&params), APPEND_BLOCKS_SHARED_BYTES as usize)
            }
        };
        vec![Launch {
            kernel: cx.kernel(kv::kernel("append", decl)),
            grid: [2 * decl.n_kv_heads as u32, 1, cx.shape.rows as u32],
            threads,
            shared_bytes: shared as u32,
            params,
        }]
    }
}
