//! Multi-head latent attention: queries through a latent vector, the latent vector of keys and values, RoPE,
//! KV write.

use super::cx::{Cx, two};
use super::head_proj;
use crate::BackendError;
use sterna_program::LatentIn;

pub fn run(cx: &mut Cx<'_>, s: &LatentIn) -> Result<(), BackendError> {
    let LatentIn { x, ref norm, ref q_latent, ref wq, ref wk, ref wkv, ref kv_norm, rope, kv, q } = *s;
    let rows = cx.step.rows;
    let n = rows.len();
    let (kernels, weights) = (cx.k.real, cx.weights);
    let (x, q) = two(cx.bufs, x, q);
    let (x_cols, x, q) = (x.cols, x.rows(n), q.rows_mut(n));
    let kv = &mut cx.kvs[kv.0 as usize];
    let (head_dim, n_heads) = (kv.head_dim(), wk.len());
    let first = weights.get(wk[0].w).shape();
    let (rank, plain) = (first.rows, first.cols);
    let part = plain + head_dim - rank;
    let keys = &mut cx.scratch.k[..n * head_dim];
    let parts = &mut cx.scratch.gated[..n * n_heads * part];

    let norm = weights.norm(norm);
    let input = |row: usize, out: &mut [f32]| norm.apply(kernels, &x[row * x_cols..][..x_cols], out);
    match q_latent {
        None => cx.layers.run(n, input, false, [(wq, &mut *parts), (wkv, &mut *keys)])?,
        Some((wa, norm)) => {
            let cols = weights.get(wa.w).shape().rows;
            let latent = &mut cx.scratch.product[..n * cols];
            cx.layers.run(n, input, false, [(wa, &mut *latent), (wkv, &mut *keys)])?;
            let (latent, norm) = (&*latent, weights.norm(norm));
            let input = |row: usize, out: &mut [f32]| norm.apply(kernels, &latent[row * cols..][..cols], out);
            cx.layers.run(n, input, false, [(wq, &mut *parts)])?;
        }
    }

    let (rope, kv_norm) = (&cx.ropes[rope.0 as usize], weights.norm(kv_norm));
    for (row, key) in keys.chunks_exact_mut(head_dim).enumerate() {
        let (latent, rotated) = key.split_at_mut(rank);
        kv_norm.apply_in_place(kernels, latent);
        rope.rotate(row, rotated);
    }
    let heads = parts.chunks_exact(n_heads * part).zip(q.chunks_exact_mut(n_heads * head_dim));
    for (row, (from, to)) in heads.enumerate() {
        for (from, to) in from.chunks_exact(part).zip(to.chunks_exact_mut(head_dim)) {
            to[rank..].copy_from_slice(&from[plain..]);
            rope.rotate(row, &mut to[rank..]);
        }
    }
    head_proj::project(&mut cx.layers, n, wk, (parts, part), &mut cx.scratch.product, (q, head_dim))?;
    kv.put(kernels, cx.pool, rows, cx.step.pages, [keys, &[]]);
    Ok(())
}
