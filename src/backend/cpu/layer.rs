//! The linear layers of one stage, over one input.

use super::linear::{Acts, CpuWeight, WeightProduct, matmul, matmul_piece};
use super::pool::Pool;
use super::simd::Kernels;
use super::stream::Reader;
use super::{StoredWeight, Weights};
use crate::BackendError;
use sterna_program::{Linear, Weight};

/// Kernels, threads and memory of linear layers.
pub struct Layers<'a> {
    pub k: &'a Kernels,
    pub pool: &'a Pool,
    pub weights: Weights<'a>,
    /// Reads weights that are not in memory.
    pub reader: Option<&'a Reader>,
    pub acts: &'a mut Acts,
}

impl Layers<'_> {
    /// Applies every layer to the `rows` rows that `input` writes; layer `i` writes `[rows, outputs]` to its
    /// slice, or adds to it. They share one parallel region, and the input where it is rounded the same way.
    ///
    /// # Errors
    /// An error in reading a weight that is not in memory.
    pub fn run<const N: usize>(
        &mut self,
        rows: usize,
        input: impl Fn(usize, &mut [f32]) + Sync,
        add: bool,
        layers: [(&Linear, &mut [f32]); N],
    ) -> Result<(), BackendError> {
        let Self { k, pool, weights, .. } = *self;
        let kind = layers[0].0.act;
        let cols = |linear: &Linear| weights.get(linear.w).shape().cols;
        if layers.iter().all(|(linear, _)| linear.act == kind) {
            self.acts.load(k, pool, kind, rows, cols(layers[0].0), input);
            return self.multiply(add, layers);
        }
        for layer in layers {
            self.acts.load(k, pool, layer.0.act, rows, cols(layer.0), &input);
            self.multiply(add, [layer])?;
        }
        Ok(())
    }

    /// Multiplies the inputs that were loaded.
    fn multiply<const N: usize>(
        &mut self,
        add: bool,
        layers: [(&Linear, &mut [f32]); N],
    ) -> Result<(), BackendError> {
        let Self { k, pool, weights, reader, ref mut acts } = *self;
        if layers.iter().all(|(linear, _)| weights.get(linear.w).file().is_none()) {
            matmul(k, pool, acts, layers.map(|layer| weights.part(layer, add)));
            return Ok(());
        }
        for (linear, out) in layers {
            let StoredWeight::File(file) = weights.get(linear.w) else {
                matmul(k, pool, acts, [weights.part((linear, out), add)]);
                continue;
            };
            let reader = reader.expect("a program whose weights are read has a reader");
            for piece in 0..file.n_pieces() {
                let filled = reader.take(linear.w, piece)?;
                let rows = file.rows_of(piece);
                let of_piece = file.shape.piece_of(rows.len(), filled.bytes());
                let part = weights.part((linear, &mut *out), add);
                matmul_piece(k, pool, acts, part, rows.start, of_piece);
                reader.give(filled);
            }
        }
        Ok(())
    }

    /// Says which weights are multiplied next, where only the step decides that.
    pub fn choose(&self, weights: impl Iterator<Item = Weight>) {
        if let Some(reader) = self.reader {
            reader.choose(weights);
        }
    }
}

impl<'a> Weights<'a> {
    fn part(self, (linear, out): (&Linear, &'a mut [f32]), add: bool) -> WeightProduct<'a> {
        let Linear { w, bias, scale, .. } = *linear;
        let w: &CpuWeight = self.get(w).shape();
        WeightProduct { w, scale, bias: bias.map(|bias| self.vector(bias)), out, add }
    }
}
