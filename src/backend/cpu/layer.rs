//! The linear layers of one stage, over one input.

use super::Weights;
use super::linear::{Acts, Part, matmul};
use super::pool::Pool;
use super::simd::Kernels;
use crate::program::Linear;

/// What linear layers need.
pub struct Layers<'a> {
    pub k: &'a Kernels,
    pub pool: &'a Pool,
    pub weights: Weights<'a>,
    pub acts: &'a mut Acts,
}

impl Layers<'_> {
    /// Applies every layer to the `rows` rows that `input` writes; layer `i` writes `[rows, outputs]` to its
    /// slice, or adds to it. They share one parallel region, and the input where it is rounded the same way.
    pub fn run<const N: usize>(
        &mut self,
        rows: usize,
        input: impl Fn(usize, &mut [f32]) + Sync,
        add: bool,
        layers: [(&Linear, &mut [f32]); N],
    ) {
        let Self { k, pool, weights, ref mut acts } = *self;
        let kind = layers[0].0.act;
        let cols = |linear: &Linear| weights.get(linear.w).cols;
        if layers.iter().all(|(linear, _)| linear.act == kind) {
            acts.load(k, pool, kind, rows, cols(layers[0].0), input);
            matmul(k, pool, acts, layers.map(|layer| weights.part(layer, add)));
        } else {
            for layer in layers {
                acts.load(k, pool, layer.0.act, rows, cols(layer.0), &input);
                matmul(k, pool, acts, [weights.part(layer, add)]);
            }
        }
    }
}

impl<'a> Weights<'a> {
    fn part(self, (linear, out): (&Linear, &'a mut [f32]), add: bool) -> Part<'a> {
        let Linear { w, bias, scale, .. } = *linear;
        Part { w: self.get(w), scale, bias: bias.map(|bias| self.vector(bias)), out, add }
    }
}
