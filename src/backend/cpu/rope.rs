//! RoPE: the angles of a step, and the rotation of one head.

use super::pool::Pool;
use sterna_cpu_kernels::Allocator;
use sterna_program::{Rope, RopeStyle, Step};

/// Cosines and sines of one RoPE configuration for the rows of a step, shared by all layers.
pub struct RopeTable {
    rope: Rope,
    /// `[rows, 2 * pairs]`: the cosines of a row, then its sines.
    cos_sin: Vec<f32>,
}

impl RopeTable {
    /// Allocates the table for steps of up to `max_rows` rows.
    pub fn new(on: &mut impl Allocator, rope: &Rope, max_rows: usize) -> Self {
        let cos_sin = on.zeros(max_rows.saturating_mul(2 * rope.inv_freq.len()));
        Self { cos_sin, rope: rope.clone() }
    }

    /// Computes the cosines and sines of a step from angles in f64.
    pub fn prepare(&mut self, pool: &Pool, step: &Step<'_>) {
        let (rope, rows, pairs) = (&self.rope, step.rows, self.rope.inv_freq.len());
        let stride = 2 * pairs;
        let angles = |i: usize, cos_sin: &mut [f32]| {
            let (cos, sin) = cos_sin.split_at_mut(pairs);
            rope.cos_sin(rope.place(&rows[i], step.pages), cos, sin);
        };
        pool.chunks_mut(&mut self.cos_sin[..rows.len() * stride], stride, angles);
    }

    /// Rotates one head of row `row` of the step, `[head_dim]`.
    pub fn rotate(&self, row: usize, head: &mut [f32]) {
        let pairs = self.rope.inv_freq.len();
        let (cos, sin) = self.cos_sin[row * 2 * pairs..][..2 * pairs].split_at(pairs);
        let head = &mut head[..2 * pairs];
        match self.rope.style {
            RopeStyle::Halves => {
                let (left, right) = head.split_at_mut(pairs);
                for (((a, b), cos), sin) in left.iter_mut().zip(right).zip(cos).zip(sin) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
            RopeStyle::Adjacent => {
                for ((pair, cos), sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
                    let (a, b) = (pair[0], pair[1]);
                    (pair[0], pair[1]) = (a * cos - b * sin, a * sin + b * cos);
                }
            }
        }
    }
}
