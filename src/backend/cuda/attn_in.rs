//! Norm, Q, K, V, RoPE, KV write: a pair of rows that RoPE rotates together shares a warp. With head norms,
//! and for layers that no single kernel computes together, `heads` does the work after the products. For
//! caches of codes or blocks, `append` does the rest, one block per row, KV head, and keys or values; in
//! steps of one row attention may do it instead.

use super::driver::{Address, Launch};
use super::kv::{self, KvLayout};
use super::linear::{self, Input, Work};
use super::params::{
    APPEND_BLOCKS_SHARED_BYTES, APPEND_THREADS, AppendBlocksParams, AppendParams, AttnInParams, KvParams,
    RopeParams,
};
use super::{Cx, attend, heads, memory, words};
use sterna_program::{AttnIn, PAGE, Program, RowsOf};

/// True if [`heads`] follows the products: for head norms, for gates, and for layers that no single kernel
/// computes together.
fn has_heads(p: &Program, s: &AttnIn) -> bool {
    let has_norms = s.q_norm.is_some() || s.k_norm.is_some();
    has_norms || s.gate.is_some() || linear::together(p, &[&s.wq, &s.wk, &s.wv]).is_none()
}

pub fn kernels(p: &Program, s: &AttnIn) -> Result<Vec<String>, String> {
    let decl = p.kv_decl(s.kv);
    if !decl.head_dim.is_multiple_of(2) {
        return Err(format!("attn_in with heads of {}", decl.head_dim));
    }
    let mut names = linear::kernels(p, "attn_in", &[&s.wq, &s.wk, &s.wv])?;
    names.extend(has_heads(p, s).then(|| heads::KERNEL.to_owned()));
    // The stage that reads the cache reports its errors.
    if kv::is_appended(decl) && kv::check(decl).is_ok() {
        names.push(kv::kernel("append", decl));
    }
    Ok(names)
}

/// Floats per row of keys, values and gated queries that are kept for `heads`.
pub fn products(p: &Program, s: &AttnIn) -> usize {
    let decl = p.kv_decl(s.kv);
    let gated = if s.gate.is_some() { p.weight_decl(s.wq.w).rows } else { 0 };
    if has_heads(p, s) { 2 * decl.n_kv_heads * decl.head_dim + gated } else { 0 }
}

pub fn launches(cx: &Cx<'_>, s: &AttnIn) -> Vec<Launch> {
    // The layers and their input are in `at_once` and `products_and_heads`, norms and the gate in `heads`.
    let AttnIn { x: _, norm: _, wq: _, wk: _, wv: _, q_norm: _, k_norm: _, rope, kv, q, gate: _ } = *s;
    let kv_layout = &cx.memory.kvs[kv.0 as usize];
    let first = if has_heads(cx.p, s) {
        products_and_heads(cx, s, kv_layout)
    } else {
        let (kv, raw) = kv_layout.for_attn_in(cx.memory.raw);
        let rope = rope.map_or(memory::NO_ROPE, |rope| cx.memory.ropes[rope.0 as usize]);
        at_once(cx, s, rope, kv, cx.memory.bufs[q.0 as usize], raw)
    };
    first.into_iter().chain(append(cx, s, kv_layout)).collect()
}

/// The launches that compute all three layers at once.
fn at_once(cx: &Cx<'_>, s: &AttnIn, rope: RopeParams, kv: KvParams, q: Address, raw: Address) -> Vec<Launch> {
    let [wq, wk, wv] = [&s.wq, &s.wk, &s.wv].map(|w| linear::linear(cx, w));
    let work = Work { rows: (wq.rows + wk.rows + wv.rows) as usize, paired: true };
    let step = cx.tables_for(s.kv);
    let params = |in_| AttnInParams { step, in_, wq, wk, wv, rope, kv, q, raw };
    linear::launches(cx, "attn_in", &s.wq, &input(s), work, params)
}

fn input(s: &AttnIn) -> Input<'_> {
    Input { x: s.x, norm: Some(&s.norm), rows: RowsOf::Step }
}

/// Products without RoPE, and the `heads` kernel for the rest.
fn products_and_heads(cx: &Cx<'_>, s: &AttnIn, kv_layout: &KvLayout) -> Vec<Launch> {
    let decl = cx.p.kv_decl(s.kv);
    let kv_cols = decl.n_kv_heads * decl.head_dim;
    let keys = cx.memory.products;
    let values = keys + (4 * cx.p.limits.rows * kv_cols) as u64;
    // After all keys and values.
    let gated = s.gate.map(|_| values + (4 * cx.p.limits.rows * kv_cols) as u64);
    let q = gated.unwrap_or(cx.memory.bufs[s.q.0 as usize]);
    if linear::together(cx.p, &[&s.wq, &s.wk, &s.wv]).is_some() {
        // In the layout that `append` reads.
        let (kv, _) = kv_layout.for_attn_in(0);
        let values = keys + 4 * kv_cols as u64;
        let from = heads::KeysAndValues { queries: gated, keys, values, pitch: 2 * kv_cols };
        let products = at_once(cx, s, memory::NO_ROPE, kv, q, keys);
        return products.into_iter().chain([heads::launch(cx, s, &from)]).collect();
    }
    let from = heads::KeysAndValues { queries: gated, keys, values, pitch: kv_cols };
    let layers = [(&s.wq, q), (&s.wk, keys), (&s.wv, values)];
    let products = linear::of_one_input(cx, &layers, &input(s));
    products.into_iter().chain([heads::launch(cx, s, &from)]).collect()
}

/// The launches that follow products computed elsewhere: keys and values are at two addresses on the GPU,
/// queries in their buffer.
pub fn after_products(cx: &Cx<'_>, s: &AttnIn, [keys, values]: [Address; 2]) -> Vec<Launch> {
    let decl = cx.p.kv_decl(s.kv);
    let from = heads::KeysAndValues { queries: None, keys, values, pitch: decl.n_kv_heads * decl.head_dim };
    let kv_layout = &cx.memory.kvs[s.kv.0 as usize];
    [heads::launch(cx, s, &from)].into_iter().chain(append(cx, s, kv_layout)).collect()
}

fn append(cx: &Cx<'_>, s: &AttnIn, kv_layout: &KvLayout) -> Option<Launch> {
    let decl = cx.p.kv_decl(s.kv);
    if attend::appends(cx, s.kv) {
        return None;
    }
    let (step, raw, q) = (cx.tables_for(s.kv), cx.memory.raw, cx.memory.bufs[s.q.0 as usize]);
    let group = (cx.p.buf_decl(s.q).cols / (decl.n_kv_heads * decl.head_dim)) as u32;
    let (params, shared) = match *kv_layout {
        KvLayout::Elements(_) => return None,
        KvLayout::Codes(kv) => {
            let warps = APPEND_THREADS as usize / 32;
            // The row that writes each position, the mean, a page of halves, and the codes of each warp's
            // vector.
            let shared = 4 * PAGE + 4 * decl.head_dim + 2 * PAGE * decl.head_dim + warps * decl.head_dim;
            (words(&AppendParams { step, kv, raw, q, group, reserved: 0 }), shared)
        }
        KvLayout::Blocks(kv) => {
            let params = AppendBlocksParams { step, kv, raw, q, group, reserved: 0 };
            (words(&params), APPEND_BLOCKS_SHARED_BYTES as usize)
        }
    };
    Some(Launch {
        kernel: cx.kernel(&kv::kernel("append", decl)),
        grid: [2 * decl.n_kv_heads as u32, 1, cx.shape.rows as u32],
        threads: APPEND_THREADS,
        shared_bytes: shared.next_multiple_of(16) as u32,
        params,
    })
}
