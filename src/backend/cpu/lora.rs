//! LoRA adapters: products of two narrow matrices, added for the rows of the sequences that use them.
//!
//! The rows of a step are grouped by adapter, so that an adapter's matrices are read once for all of its
//! rows. A row adds its adapters in the order of their numbers, each with the same sums in any step: what a
//! row gives does not depend on the other rows.

use super::linear::{Acts, CpuWeight, WeightProduct, WorkspaceSize, matmul};
use super::pool::Pool;
use super::weights::Weights;
use sterna_cpu_kernels::{Aligned, Allocator, Kernels};
use sterna_program::{ActQuant, Linear, Lora, Program, RowsOf, Stage, Step};

/// The adapters that the rows of a step use, and memory for their products.
pub struct Adapters {
    max_rows: usize,
    /// Scales by adapter and row, `[n_adapters, max_rows]`; 0 if the row does not use the adapter.
    scales: Vec<f32>,
    /// Adapters of the step, ascending.
    used: Vec<u32>,
    /// Rows of a product that use the current adapter, with their scales.
    rows: Vec<(usize, f32)>,
    /// Inputs of first matrices.
    inputs: Acts,
    /// Products of first matrices, `[rows, rank]`.
    first: Aligned<f32>,
    /// Inputs of second matrices: the products of the first ones, scaled.
    ranks: Acts,
    /// Products of second matrices, `[rows, outputs]`.
    product: Aligned<f32>,
}

/// Sizes of the largest pairs of a program, in elements.
#[derive(Default)]
struct Sizes {
    inputs: WorkspaceSize,
    ranks: WorkspaceSize,
    first: usize,
    product: usize,
}

impl Sizes {
    fn of(p: &Program, k: &Kernels) -> Self {
        let mut sizes = Self::default();
        for (_, stage) in &p.stages {
            let (rows, linears) = stage.linears();
            let rows = p.max_rows(rows);
            for pair in linears.flat_map(|linear| &linear.lora) {
                let a = p.weight_decl(pair.a);
                sizes.inputs = sizes.inputs.with(k, a.ty, a.cols, ActQuant::None, rows);
                sizes.add(p, k, pair, rows);
            }
            if let Stage::Embed(s) = stage {
                s.lora.iter().for_each(|pair| sizes.add(p, k, pair, p.max_rows(RowsOf::Step)));
            }
        }
        sizes
    }

    fn add(&mut self, p: &Program, k: &Kernels, pair: &Lora, rows: usize) {
        let b = p.weight_decl(pair.b);
        self.ranks = self.ranks.with(k, b.ty, b.cols, ActQuant::None, rows);
        self.first = self.first.max(rows.saturating_mul(b.cols));
        self.product = self.product.max(rows.saturating_mul(b.rows));
    }
}

impl Adapters {
    /// Memory for the adapters of a program; none without adapters.
    pub fn new(on: &mut impl Allocator, p: &Program, k: &Kernels, threads: usize) -> Self {
        let sizes = Sizes::of(p, k);
        let has_any = !p.adapters.is_empty();
        let max_rows = if has_any { p.limits.rows } else { 0 };
        let threads = if has_any { threads } else { 0 };
        Self {
            max_rows,
            scales: on.zeros(p.adapters.len() * max_rows),
            used: on.room(p.adapters.len()),
            rows: on.room(max_rows),
            inputs: Acts::on(on, &sizes.inputs, threads),
            first: on.aligned(sizes.first),
            ranks: Acts::on(on, &sizes.ranks, threads),
            product: on.aligned(sizes.product),
        }
    }

    /// Reads the adapters of a step's rows.
    pub fn prepare(&mut self, step: &Step<'_>) {
        self.used.clear();
        for (adapter, scales) in self.scales.chunks_exact_mut(self.max_rows.max(1)).enumerate() {
            let adapter = adapter as u32;
            scales.iter_mut().zip(step.rows).for_each(|(scale, row)| *scale = step.scale(row, adapter));
            if scales[..step.rows.len()].iter().any(|scale| *scale != 0.0) {
                self.used.push(adapter);
            }
        }
    }

    /// True if rows of the step use adapters.
    pub fn are_used(&self) -> bool {
        !self.used.is_empty()
    }

    /// Adds the products of the layers' pairs to their outputs, `[rows, outputs]` each. `input` writes an
    /// input before the layer's norm, and `row_of` returns the row of the step for a row of the layers.
    pub fn add<'a>(
        &mut self,
        (k, pool, weights): (&Kernels, &Pool, Weights<'_>),
        rows: usize,
        row_of: impl Fn(usize) -> usize,
        input: &(impl Fn(usize, &mut [f32]) + Sync),
        layers: impl Iterator<Item = (&'a Linear, &'a mut [f32])>,
    ) {
        let mut layers: Vec<_> = layers.filter(|(linear, _)| !linear.lora.is_empty()).collect();
        for at in 0..if layers.is_empty() { 0 } else { self.used.len() } {
            let adapter = self.used[at];
            self.select(adapter, rows, &row_of);
            let mut loaded = None;
            for (linear, out) in &mut layers {
                let Some(pair) = pair_of(&linear.lora, adapter).filter(|_| !self.rows.is_empty()) else {
                    continue;
                };
                let Lora { adapter: _, a, b, scale } = *pair;
                let (a, b) = (weights.get(a).shape(), weights.get(b).shape());
                let Self { rows, inputs, first, .. } = self;
                let key = linear.norm.as_ref().map(|norm| norm.weight);
                if loaded != Some(key) {
                    let norm = linear.norm.as_ref().map(|norm| weights.norm(norm));
                    inputs.load(k, pool, ActQuant::None, rows.len(), a.cols, |i, to| {
                        input(rows[i].0, to);
                        if let Some(norm) = norm {
                            norm.apply_in_place(k.real, to);
                        }
                    });
                    loaded = Some(key);
                }
                let first = &mut first[..rows.len() * a.rows];
                matmul(
                    k,
                    pool,
                    inputs,
                    [WeightProduct { w: a, scale: 1.0, bias: None, out: first, add: false }],
                );
                self.add_second(k, pool, b, scale, out);
            }
        }
    }

    /// Adds the products of a table's pairs to `out`, `[rows, dim]`; `decode` writes the row of the first
    /// matrix for a row of the step.
    pub fn add_rows(
        &mut self,
        (k, pool, weights): (&Kernels, &Pool, Weights<'_>),
        pairs: &[Lora],
        rows: usize,
        out: &mut [f32],
        decode: impl Fn(&CpuWeight, usize, &mut [f32]),
    ) {
        for at in 0..self.used.len() {
            let Some(pair) = pair_of(pairs, self.used[at]) else { continue };
            self.select(self.used[at], rows, |row| row);
            let a = weights.get(pair.a).shape();
            for ((row, _), to) in self.rows.iter().zip(self.first.chunks_exact_mut(a.cols)) {
                decode(a, *row, to);
            }
            self.add_second(k, pool, weights.get(pair.b).shape(), pair.scale, out);
        }
    }

    /// Selects the rows that use an adapter.
    fn select(&mut self, adapter: u32, rows: usize, row_of: impl Fn(usize) -> usize) {
        let scales = &self.scales[adapter as usize * self.max_rows..][..self.max_rows];
        let used = (0..rows).map(|i| (i, scales[row_of(i)])).filter(|(_, scale)| *scale != 0.0);
        self.rows.clear();
        self.rows.extend(used);
    }

    /// Multiplies the first products of the selected rows by `b`, and adds the result to their rows of `out`.
    fn add_second(&mut self, k: &Kernels, pool: &Pool, b: &CpuWeight, factor: f32, out: &mut [f32]) {
        let Self { rows, first, ranks, product, .. } = self;
        let (rank, outputs) = (b.cols, b.rows);
        ranks.load(k, pool, ActQuant::None, rows.len(), rank, |i, to| {
            let scale = rows[i].1 * factor;
            to.iter_mut().zip(&first[i * rank..]).for_each(|(to, first)| *to = scale * first);
        });
        let product = &mut product[..rows.len() * outputs];
        let second = WeightProduct { w: b, scale: 1.0, bias: None, out: &mut *product, add: false };
        matmul(k, pool, ranks, [second]);
        for ((row, _), product) in rows.iter().zip(product.chunks_exact(outputs)) {
            out[row * outputs..][..outputs].iter_mut().zip(product).for_each(|(out, y)| *out += y);
        }
    }
}

fn pair_of(pairs: &[Lora], adapter: u32) -> Option<&Lora> {
    pairs.iter().find(|pair| pair.adapter == adapter)
}
