//! The linear layers of one stage, which share one input.

use super::linear::{Acts, CpuWeight, WeightProduct, matmul, matmul_piece};
use super::lora::Adapters;
use super::pool::Pool;
use super::stream::Reader;
use super::weights::{StoredWeight, Weights};
use crate::BackendError;
use sterna_cpu_kernels::Kernels;
use sterna_program::{Basis, Clamp, Linear, Weight};

/// Elements of one task when outputs are clamped.
const CHUNK: usize = 8192;

/// Kernels, threads and memory of linear layers.
pub struct Layers<'a> {
    pub k: &'a Kernels,
    pub pool: &'a Pool,
    pub weights: Weights<'a>,
    pub bases: &'a [Basis],
    /// Reads weights that are not in memory.
    pub reader: Option<&'a Reader>,
    pub acts: &'a mut Acts,
    pub adapters: &'a mut Adapters,
}

impl Layers<'_> {
    /// Applies every layer to the `rows` rows that `input` writes. Layer `i` writes `[rows, outputs]` to its
    /// slice, or adds to it. Layers that normalise, rotate and quantise the input in the same way share the
    /// prepared input and one parallel region. The rows are those of the step.
    ///
    /// # Errors
    /// If a weight that is not in memory cannot be read.
    pub fn run<const N: usize>(
        &mut self,
        rows: usize,
        input: impl Fn(usize, &mut [f32]) + Sync,
        add: bool,
        layers: [(&Linear, &mut [f32]); N],
    ) -> Result<(), BackendError> {
        self.run_some(rows, |row| row, input, add, layers)
    }

    /// As [`run`](Self::run) for some rows of the step: `row_of` returns the row of the step for each.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_some<const N: usize>(
        &mut self,
        rows: usize,
        row_of: impl Fn(usize) -> usize,
        input: impl Fn(usize, &mut [f32]) + Sync,
        add: bool,
        mut layers: [(&Linear, &mut [f32]); N],
    ) -> Result<(), BackendError> {
        let first = layers[0].0;
        if layers.iter().all(|(linear, _)| linear.prepared() == first.prepared()) {
            self.load(rows, &input, first);
            self.multiply(add, layers.each_mut().map(|(linear, out)| (*linear, &mut **out)))?;
        } else {
            for (linear, out) in &mut layers {
                self.load(rows, &input, linear);
                self.multiply(add, [(*linear, &mut **out)])?;
            }
        }
        if self.adapters.are_used() {
            let tools = (self.k, self.pool, self.weights);
            let layers = layers.iter_mut().map(|(linear, out)| (*linear, &mut **out));
            self.adapters.add(tools, rows, row_of, &input, layers);
        }
        for (linear, out) in layers {
            // The program's check excludes products that are added.
            if let Some(Clamp { output: [lower, upper], .. }) = linear.clamp {
                self.pool.chunks_mut(out, CHUNK, |_, out| {
                    out.iter_mut().for_each(|y| *y = y.clamp(lower, upper));
                });
            }
        }
        Ok(())
    }

    /// Prepares the inputs as a layer expects them.
    fn load(&mut self, rows: usize, input: &(impl Fn(usize, &mut [f32]) + Sync), linear: &Linear) {
        let Self { k, pool, weights, .. } = *self;
        let cols = weights.get(linear.w).shape().cols;
        let norm = linear.norm.as_ref().map(|norm| weights.norm(norm));
        let basis = linear.basis.map(|basis| &self.bases[basis.0 as usize]);
        let bounds = linear.clamp.map(|clamp| clamp.input);
        let prepared = |row: usize, out: &mut [f32]| {
            input(row, out);
            if let Some(norm) = norm {
                norm.apply_in_place(k.real, out);
            }
            if let Some([lower, upper]) = bounds {
                out.iter_mut().for_each(|x| *x = x.clamp(lower, upper));
            }
            if let Some(basis) = basis {
                basis.rotate(out);
            }
        };
        self.acts.load(k, pool, linear.act, rows, cols, prepared);
    }

    /// Multiplies the prepared inputs by the layers' weights.
    fn multiply<const N: usize>(
        &mut self,
        add: bool,
        layers: [(&Linear, &mut [f32]); N],
    ) -> Result<(), BackendError> {
        let Self { k, pool, weights, reader, ref mut acts, .. } = *self;
        if layers.iter().all(|(linear, _)| weights.get(linear.w).file().is_none()) {
            matmul(k, pool, acts, layers.map(|layer| weights.part(layer, add)));
            return Ok(());
        }
        for (linear, out) in layers {
            let StoredWeight::File(file) = weights.get(linear.w) else {
                matmul(k, pool, acts, [weights.part((linear, out), add)]);
                continue;
            };
            let reader = reader.expect("a program with weights in files has a reader");
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

    /// Tells the reader which weights are multiplied next, if only the step selects them.
    pub fn choose(&self, weights: impl Iterator<Item = Weight>) {
        if let Some(reader) = self.reader {
            reader.choose(weights);
        }
    }
}

impl<'a> Weights<'a> {
    fn part(self, (linear, out): (&Linear, &'a mut [f32]), add: bool) -> WeightProduct<'a> {
        // `load` has applied the other fields to the input, `adapters` adds the pairs, and `run_some` applies
        // the bounds to the product.
        let Linear { w, norm: _, bias, act: _, scale, basis: _, lora: _, clamp: _ } = *linear;
        let w: &CpuWeight = self.get(w).shape();
        WeightProduct { w, scale, bias: bias.map(|bias| self.vector(bias)), out, add }
    }
}
