//! Scratch memory of mixtures of experts.

use sterna_cpu_kernels::{Aligned, Allocator};
use sterna_program::{Experts, Program};

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
            dim: self.dim.max(p.buf_decl(s.x).cols).max(s.out.map_or(0, |out| p.buf_decl(out).cols)),
        }
    }
}

/// Scratch memory for mixtures of experts.
pub struct Scratch {
    /// Logits of the router, `[rows, n_experts]`.
    pub logits: Aligned<f32>,
    /// Experts of the current row, best first.
    pub order: Vec<usize>,
    /// Their scores.
    pub scores: Vec<f32>,
    pub choices: Vec<Choice>,
    /// Gate projections of one expert's rows, `[rows, ffn_dim]`.
    pub gate: Aligned<f32>,
    /// Hidden activations of one expert's rows, `[rows, ffn_dim]`.
    pub h: Aligned<f32>,
    /// Outputs of one expert's rows, `[rows, dim]`.
    pub product: Aligned<f32>,
    /// Weighted sum of the experts' outputs for each row, `[rows, dim]`.
    pub sum: Aligned<f32>,
}

/// An expert selected for a row.
#[derive(Clone, Copy)]
pub struct Choice {
    pub expert: usize,
    pub row: usize,
    pub weight: f32,
}

impl Scratch {
    /// Memory for stages of up to `shape`, in steps of up to `rows` rows.
    pub fn new(on: &mut impl Allocator, shape: Shape, rows: usize) -> Self {
        let Shape { n_experts, n_used, ffn_dim, dim } = shape;
        Self {
            logits: on.aligned(rows.saturating_mul(n_experts)),
            order: on.room(n_experts),
            scores: on.room(n_experts),
            choices: on.room(rows.saturating_mul(n_used)),
            gate: on.aligned(rows.saturating_mul(ffn_dim)),
            h: on.aligned(rows.saturating_mul(ffn_dim)),
            product: on.aligned(rows.saturating_mul(dim)),
            sum: on.aligned(rows.saturating_mul(dim)),
        }
    }
}
