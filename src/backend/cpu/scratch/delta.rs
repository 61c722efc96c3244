//! Scratch memory of gated delta nets.

use sterna_cpu_kernels::{Aligned, Allocator};
use sterna_program::{Delta, Program, StateDecl};

/// Sizes of the largest delta nets of a program.
#[derive(Clone, Copy, Default)]
pub struct Shape {
    key_cols: usize,
    value_cols: usize,
}

impl Shape {
    /// The smallest shape that holds this one and a stage.
    pub fn with(self, p: &Program, s: &Delta) -> Self {
        // `check` requires values as long as keys.
        let StateDecl { n_heads, n_key_heads, head_dim, key_dim: _, taps: _ } = *p.state_decl(s.state);
        Self {
            key_cols: self.key_cols.max(2 * n_key_heads * head_dim),
            value_cols: self.value_cols.max(n_heads * head_dim),
        }
    }
}

/// Scratch memory for delta nets.
pub struct Scratch {
    /// Queries and keys, `[rows, 2 * n_key_heads * head_dim]`.
    pub keys: Aligned<f32>,
    /// Values, later outputs of the recurrence, `[rows, n_heads * head_dim]`.
    pub values: Aligned<f32>,
}

impl Scratch {
    /// Memory for stages of up to `shape`, in steps of up to `rows` rows.
    pub fn new(on: &mut impl Allocator, shape: Shape, rows: usize) -> Self {
        Self {
            keys: on.aligned(rows.saturating_mul(shape.key_cols)),
            values: on.aligned(rows.saturating_mul(shape.value_cols)),
        }
    }
}
