//! Norm, Q, K, V, rotary embedding, KV write: pairs of rows that turn together share a warp. For caches of codes or blocks, `append`
//! does the rest: a block a row, KV head, and its keys or its values.

use super::driver::Launch;
use super::kv::{self, Kept};
use super::linear::{self, Input, Work};
use super::params::{
    APPEND_BLOCKS_SHARED_BYTES, APPEND_THREADS, AppendBlocksParams, AppendParams, AttnInParams,
};
use super::{Cx, memory, words};
use crate::program::{AttnIn, PAGE, Program, RowsOf};

pub fn kernels(p: &Program, s: &AttnIn) -> Result<Vec<String>, String> {
    if s.q_norm.is_some() || s.k_norm.is_some() {
        return Err("attn_in with norms of heads".into());
    }
    let head_dim = p.kv_decl(s.kv).head_dim;
    if !head_dim.is_multiple_of(2) {
        return Err(format!("attn_in with heads of {head_dim}"));
    }
    let mut names = linear::kernels(p, "attn_in", &[&s.wq, &s.wk, &s.wv])?;
    let decl = p.kv_decl(s.kv);
    // What is wrong with the cache, the stage that reads it says.
    if kv::is_appended(decl) && kv::check(decl).is_ok() {
        names.push(kv::kernel("append", decl));
    }
    Ok(names)
}

pub fn launches(cx: &Cx<'_>, s: &AttnIn) -> Vec<Launch> {
    let kept = &cx.memory.kvs[s.kv.0 as usize];
    let (kv, raw) = kept.for_attn_in(cx.memory.raw);
    let input = Input { x: s.x, norm: Some(&s.norm), rows: RowsOf::Step };
    let [wq, wk, wv] = [&s.wq, &s.wk, &s.wv].map(|w| linear::linear(cx, w));
    let work = Work { rows: (wq.rows + wk.rows + wv.rows) as usize, paired: true };
    let products = linear::launch(cx, "attn_in", &s.wq, &input, work, |in_| AttnInParams {
        step: cx.tables(),
        in_,
        wq,
        wk,
        wv,
        rope: s.rope.map_or(memory::NO_ROPE, |rope| cx.memory.ropes[rope.0 as usize]),
        kv,
        q: cx.memory.bufs[s.q.0 as usize],
        raw,
    });
    std::iter::once(products).chain(append(cx, s, kept)).collect()
}

fn append(cx: &Cx<'_>, s: &AttnIn, kept: &Kept) -> Option<Launch> {
    let decl = cx.p.kv_decl(s.kv);
    let (step, raw, q) = (cx.tables(), cx.memory.raw, cx.memory.bufs[s.q.0 as usize]);
    let group = (cx.p.buf_decl(s.q).cols / (decl.n_kv_heads * decl.head_dim)) as u32;
    let (params, shared) = match *kept {
        Kept::Elements(_) => return None,
        Kept::Codes(kv) => {
            let warps = APPEND_THREADS as usize / 32;
            // Which row brings a position, the mean, a page of halves, and the codes of each warp's vector.
            let shared = 4 * PAGE + 4 * decl.head_dim + 2 * PAGE * decl.head_dim + warps * decl.head_dim;
            (words(&AppendParams { step, kv, raw, q, group, reserved: 0 }), shared)
        }
        Kept::Blocks(kv) => {
            let params = AppendBlocksParams { step, kv, raw, q, group, reserved: 0 };
            (words(&params), APPEND_BLOCKS_SHARED_BYTES as usize)
        }
    };
    Some(Launch {
        kernel: cx.kernel(&kv::kernel("append", decl)),
        grid: [2 * decl.n_kv_heads as u32, 1, cx.shape.rows as u32],
        threads: APPEND_THREADS,
        shared_bytes: shared.next_multiple_of(16) as u32,
        cooperative: false,
        params,
    })
}
