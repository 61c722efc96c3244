//! A mixture of experts: each row goes through the few experts for which its router logits are largest.
//!
//! Rows are sorted by expert, so that an expert's weights are read once for all of its rows. A row sums its
//! experts in order of expert index, so the sum does not depend on the other rows of the step.

use super::cx::Cx;
use super::scratch::experts::{Choice, Scratch};
use crate::BackendError;
use sterna_program::{Expert, Experts};

/// Elements of one task when the activation function is applied.
const CHUNK: usize = 8192;

pub fn run(cx: &mut Cx<'_>, s: &Experts) -> Result<(), BackendError> {
    let Experts {
        x,
        ref norm,
        ref router_norm,
        ref router,
        ref routing,
        ref experts,
        n_used,
        act,
        input: from,
        out,
    } = *s;
    let n = cx.step.rows.len();
    let k = cx.k.real;
    let norm = cx.weights.norm(norm);
    let router_norm = router_norm.as_ref().map(|norm| cx.weights.norm(norm));
    let (x, from) = (&cx.bufs[x.0 as usize], from.map(|from| &cx.bufs[from.0 as usize]));
    let (dim, n_experts) = (x.cols, experts.len());
    let width = from.map_or(dim, |from| from.cols);
    let bias = routing.bias.map(|bias| cx.weights.vector(bias));
    let Scratch { logits, order, scores, choices, gate, h, product, sum } = &mut cx.scratch.experts;

    let normed = |row: usize, out: &mut [f32]| norm.apply(k, &x.rows(n)[row * dim..][..dim], out);
    let logits = &mut logits[..n * n_experts];
    let of_router = |row: usize, out: &mut [f32]| match &router_norm {
        Some(norm) => norm.apply(k, &x.rows(n)[row * dim..][..dim], out),
        None => normed(row, out),
    };
    cx.layers.run(n, of_router, false, [(router, &mut *logits)])?;
    choices.clear();
    for (row, z) in logits.chunks_exact_mut(n_experts).enumerate() {
        routing.choose(z, bias, n_used, order, scores);
        choices.extend(order[..n_used].iter().map(|e| Choice { expert: *e, row, weight: z[*e] }));
    }
    choices.sort_unstable_by_key(|choice| (choice.expert, choice.row));

    let chosen = choices.chunk_by(|a, b| a.expert == b.expert).map(|rows| &experts[rows[0].expert]);
    cx.layers.choose(chosen.flat_map(|expert| expert.layers().map(|layer| layer.w)));

    let into = |row: usize, out: &mut [f32]| match from {
        Some(from) => out.copy_from_slice(&from.rows(n)[row * width..][..width]),
        None => normed(row, out),
    };
    let sum = &mut sum[..n * width];
    sum.fill(0.0);
    for rows in choices.chunk_by(|a, b| a.expert == b.expert) {
        let Expert { gate: gates, up, down } = &experts[rows[0].expert];
        let ffn_dim = cx.weights.get(up.w).shape().rows;
        let h = &mut h[..rows.len() * ffn_dim];
        let input = |i: usize, out: &mut [f32]| into(rows[i].row, out);
        let row_of = |i: usize| rows[i].row;
        if let Some(gates) = gates {
            let gate = &mut gate[..rows.len() * ffn_dim];
            let layers = [(gates, &mut *gate), (up, &mut *h)];
            cx.layers.run_some(rows.len(), row_of, input, false, layers)?;
            let gate = &*gate;
            cx.pool.chunks_mut(h, CHUNK, |i, h| (k.gate)(act, &gate[i * CHUNK..][..h.len()], h));
        } else {
            cx.layers.run_some(rows.len(), row_of, input, false, [(up, &mut *h)])?;
            cx.pool.chunks_mut(h, CHUNK, |_, h| (k.act)(act, h));
        }
        let product = &mut product[..rows.len() * width];
        let input = |i: usize, out: &mut [f32]| out.copy_from_slice(&h[i * ffn_dim..][..ffn_dim]);
        cx.layers.run_some(rows.len(), row_of, input, false, [(down, &mut *product)])?;
        for (choice, product) in rows.iter().zip(product.chunks_exact(width)) {
            let sum = &mut sum[choice.row * width..][..width];
            sum.iter_mut().zip(product).for_each(|(sum, y)| *sum += choice.weight * y);
        }
    }
    match out {
        Some(out) => cx.bufs[out.0 as usize].rows_mut(n).copy_from_slice(sum),
        None => {
            let x = cx.bufs[s.x.0 as usize].rows_mut(n);
            x.iter_mut().zip(sum).for_each(|(x, sum)| *x += *sum);
        }
    }
    Ok(())
}
