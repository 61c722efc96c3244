//! Scratch memory of the stages, allocated once.

pub mod attend;
pub mod delta;
pub mod experts;

use std::ops::Range;

use sterna_cpu_kernels::Aligned;
use sterna_program::sampling;

/// Scratch memory, shared by all stages.
pub struct Scratch {
    /// One row of a table whose rows are added to the embedding.
    pub added: Vec<f32>,
    /// `[rows, n_kv_heads * head_dim]`.
    pub k: Aligned<f32>,
    /// `[rows, n_kv_heads * head_dim]`.
    pub v: Aligned<f32>,
    /// Queries interleaved per head with their gates, `[rows, 2 * n_heads * head_dim]`.
    pub gated: Aligned<f32>,
    /// Gates of the shared expert, before the sigmoid, `[rows]`.
    pub share: Vec<f32>,
    /// Output of a linear layer that is processed further before the stage writes it, `[rows, outputs]`.
    pub product: Aligned<f32>,
    /// Rows of each sequence with the slot of its state.
    pub runs: Vec<(Range<usize>, usize)>,
    pub attend: attend::Scratch,
    pub delta: delta::Scratch,
    pub experts: experts::Scratch,
    /// One per thread.
    pub sampling: Vec<sampling::Scratch>,
}
