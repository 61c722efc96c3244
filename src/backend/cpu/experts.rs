//! A mixture of experts: each row goes through the few experts for which its router logits are largest.
//!
//! Rows are sorted by expert, so that an expert's weights are read once for all of its rows. A row sums its
//! experts in order of expert index, so the sum does not depend on the other rows of the step.

use super::Cx;
use super::simd::{Aligned, Allocator};
use crate::BackendError;
use sterna_program::{Expert, Experts, Program};

/// Elements of one task when the activation function is applied.
const CHUNK: usize = 8192;

/// Sizes of the largest mixture of a program.
#[derive(Clone, Copy, Default)]
pub struct Shape {
    n_experts: usize,
    n_used: usize,
    ffn_dim: usize,
    dim: usize,
}

impl Shape {
    /// The smallest shape that holds this one and a stage.
    pub fn with(self, p: &Program, s: &Experts) -> Self {
        let ffn_dim = s.experts.iter().map(|expert| p.weight_decl(expert.up.w).rows).max().unwrap_or(0);
        Self {
            n_experts: self.n_experts.max(s.experts.len()),
            n_used: self.n_used.max(s.n_used),
            ffn_dim: self.ffn_dim.max(ffn_dim),
            dim: self.dim.max(p.buf_decl(s.x).cols),
        }
    }
}

/// Scratch memory for mixtures of experts.
pub struct Scratch {
    /// Logits of the router, `[rows, n_experts]`.
    logits: Aligned<f32>,
    /// Experts of the current row, by descending logit.
    order: Vec<usize>,
    choices: Vec<Choice>,
    /// Gate projections of one expert's rows, `[rows, ffn_dim]`.
    gate: Aligned<f32>,
    /// Hidden activations of one expert's rows, `[rows, ffn_dim]`.
    h: Aligned<f32>,
    /// Outputs of one expert's rows, `[rows, dim]`.
    product: Aligned<f32>,
    /// Weighted sum of the experts' outputs for each row, `[rows, dim]`.
    sum: Aligned<f32>,
}

/// An expert selected for a row.
#[derive(Clone, Copy)]
struct Choice {
    expert: usize,
    row: usize,
    weight: f32,
}

impl Scratch {
    /// Memory for stages of up to `shape`, in steps of up to `rows` rows.
    pub fn new(on: &mut impl Allocator, shape: Shape, rows: usize) -> Self {
        let Shape { n_experts, n_used, ffn_dim, dim } = shape;
        Self {
            logits: on.aligned(rows.saturating_mul(n_experts)),
            order: on.room(n_experts),
            choices: on.room(rows.saturating_mul(n_used)),
            gate: on.aligned(rows.saturating_mul(ffn_dim)),
            h: on.aligned(rows.saturating_mul(ffn_dim)),
            product: on.aligned(rows.saturating_mul(dim)),
            sum: on.aligned(rows.saturating_mul(dim)),
        }
    }
}

pub fn run(cx: &mut Cx<'_>, s: &Experts) -> Result<(), BackendError> {
    let Experts { x, ref norm, ref router, ref experts, n_used, act } = *s;
    let n = cx.step.rows.len();
    let k = cx.k.real;
    let norm = cx.weights.norm(norm);
    let x = &mut cx.bufs[x.0 as usize];
    let (dim, n_experts) = (x.cols, experts.len());
    let Scratch { logits, order, choices, gate, h, product, sum } = &mut cx.scratch.experts;

    let normed = |row: usize, out: &mut [f32]| norm.apply(k, &x.rows(n)[row * dim..][..dim], out);
    let logits = &mut logits[..n * n_experts];
    cx.layers.run(n, normed, false, [(router, &mut *logits)])?;
    choices.clear();
    for (row, z) in logits.chunks_exact(n_experts).enumerate() {
        choose(z, n_used, row, order, choices);
    }
    choices.sort_unstable_by_key(|choice| (choice.expert, choice.row));

    let chosen = choices.chunk_by(|a, b| a.expert == b.expert).map(|rows| &experts[rows[0].expert]);
    cx.layers.choose(chosen.flat_map(|expert| [expert.gate.w, expert.up.w, expert.down.w]));

    let sum = &mut sum[..n * dim];
    sum.fill(0.0);
    for rows in choices.chunk_by(|a, b| a.expert == b.expert) {
        let Expert { gate: gates, up, down } = &experts[rows[0].expert];
        let ffn_dim = cx.weights.get(up.w).shape().rows;
        let (gate, h) = (&mut gate[..rows.len() * ffn_dim], &mut h[..rows.len() * ffn_dim]);
        let input = |i: usize, out: &mut [f32]| normed(rows[i].row, out);
        cx.layers.run(rows.len(), input, false, [(gates, &mut *gate), (up, &mut *h)])?;
        let gate = &*gate;
        cx.pool.chunks_mut(h, CHUNK, |i, h| (k.gate)(act, &gate[i * CHUNK..][..h.len()], h));
        let product = &mut product[..rows.len() * dim];
        let input = |i: usize, out: &mut [f32]| out.copy_from_slice(&h[i * ffn_dim..][..ffn_dim]);
        cx.layers.run(rows.len(), input, false, [(down, &mut *product)])?;
        for (choice, product) in rows.iter().zip(product.chunks_exact(dim)) {
            let sum = &mut sum[choice.row * dim..][..dim];
            sum.iter_mut().zip(product).for_each(|(sum, y)| *sum += choice.weight * y);
        }
    }
    x.rows_mut(n).iter_mut().zip(sum).for_each(|(x, sum)| *x += *sum);
    Ok(())
}

/// Appends a row's `n_used` experts with the largest logits `z`, weighted with the softmax over these.
fn choose(z: &[f32], n_used: usize, row: usize, order: &mut Vec<usize>, choices: &mut Vec<Choice>) {
    order.clear();
    order.extend(0..z.len());
    order.sort_unstable_by(|a, b| z[*b].total_cmp(&z[*a]).then(a.cmp(b)));
    let chosen = &order[..n_used];
    let weight = |expert: &usize| (z[*expert] - z[chosen[0]]).exp();
    let total: f32 = chosen.iter().map(weight).sum();
    choices.extend(chosen.iter().map(|e| Choice { expert: *e, row, weight: weight(e) / total }));
}
