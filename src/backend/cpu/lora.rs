//! LoRA adapters: products of two narrow matrices, added for the rows of the sequences that use them.
//!
//! The rows of a step are grouped by adapter, so that an adapter's matrices are read once for all of its
//! rows. The first matrices of all adapters and layers with the same input are multiplied in one parallel
//! region, the second ones in another. A row adds its adapters in the order of their numbers, each with the
//! same sums in any step: what a row gives does not depend on the other rows.

use std::ops::Range;

use super::linear::{Acts, CpuWeight, FloatProduct, WorkspaceSize, matmul_floats};
use super::pool::{Grid, Pool};
use super::weights::Weights;
use sterna_cpu_kernels::{Aligned, Allocator, Kernels};
use sterna_program::{ActQuant, Linear, Lora, Norm, Program, RowsOf, Stage, Step};

/// Outputs of a task that adds products.
const WIDTH: usize = 1024;

/// The adapters that the rows of a step use, and memory for their products.
pub struct Adapters {
    max_rows: usize,
    /// Scales by adapter and row, `[n_adapters, max_rows]`; 0 if the row does not use the adapter.
    scales: Vec<f32>,
    /// Adapters of the step, ascending.
    used: Vec<u32>,
    /// Rows of the current products and their scales, ordered by adapter. There are at most as many as rows
    /// of the step.
    rows: Vec<(usize, f32)>,
    /// Adapters of the current products, and where their rows are in `rows`.
    shares: Vec<(u32, Range<usize>)>,
    /// Inputs of first matrices.
    inputs: Acts,
    /// Products of first matrices, `[rows, rank]` for each layer and adapter.
    first: Aligned<f32>,
    /// Products of second matrices, `[rows, outputs]` for each layer and adapter.
    product: Aligned<f32>,
}

/// A layer, or a table, with adapters.
struct Adapted<'a> {
    pairs: &'a [Lora],
    norm: Option<&'a Norm>,
    /// `[rows, outputs]`.
    out: &'a mut [f32],
}

/// Sizes of the largest stages of a program, in elements.
#[derive(Default)]
struct Sizes {
    inputs: WorkspaceSize,
    first: usize,
    product: usize,
}

impl Sizes {
    fn of(p: &Program, k: &Kernels) -> Self {
        let mut sizes = Self::default();
        for (_, stage) in &p.stages {
            let (rows, linears) = stage.linears();
            let rows = p.max_rows(rows);
            if let Stage::Experts(s) = stage {
                sizes.add(p, k, rows, std::iter::once(s.router.lora.as_slice()));
                for expert in &s.experts {
                    sizes.add(p, k, rows, expert.layers().map(|linear| linear.lora.as_slice()));
                }
            } else {
                sizes.add(p, k, rows, linears.map(|linear| linear.lora.as_slice()));
            }
            if let Stage::Embed(s) = stage {
                sizes.add(p, k, p.max_rows(RowsOf::Step), std::iter::once(s.lora.as_slice()));
            }
        }
        sizes
    }

    /// Adds the pairs of some layers, whose products are in memory at once.
    fn add<'a>(&mut self, p: &Program, k: &Kernels, rows: usize, layers: impl Iterator<Item = &'a [Lora]>) {
        let (mut ranks, mut outputs) = (0, 0);
        for pairs in layers {
            for pair in pairs {
                let (a, b) = (p.weight_decl(pair.a), p.weight_decl(pair.b));
                self.inputs = self.inputs.with(k, a.ty, a.cols, ActQuant::None, rows);
                self.inputs = self.inputs.with(k, b.ty, b.cols, ActQuant::None, rows);
            }
            ranks += pairs.iter().map(|pair| p.weight_decl(pair.b).cols).max().unwrap_or(0);
            outputs += pairs.iter().map(|pair| p.weight_decl(pair.b).rows).max().unwrap_or(0);
        }
        self.first = self.first.max(rows.saturating_mul(ranks));
        self.product = self.product.max(rows.saturating_mul(outputs));
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
            shares: on.room(p.adapters.len()),
            inputs: Acts::on(on, &sizes.inputs, threads),
            first: on.aligned(sizes.first),
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
        let adapted = layers.filter(|(linear, _)| !linear.lora.is_empty());
        let mut layers: Vec<_> = adapted
            .map(|(linear, out)| Adapted { pairs: &linear.lora, norm: linear.norm.as_ref(), out })
            .collect();
        let same_input = |a: &Adapted<'_>, b: &Adapted<'_>| {
            a.norm.map(|norm| norm.weight) == b.norm.map(|norm| norm.weight)
        };
        for layers in layers.chunk_by_mut(same_input) {
            let norm = layers[0].norm.map(|norm| weights.norm(norm));
            let cols = weights.get(layers[0].pairs[0].a).shape().cols;
            let mut next = 0;
            while self.select(&mut next, rows, &row_of) {
                let Self { rows, shares, inputs, first, .. } = self;
                inputs.load(k, pool, ActQuant::None, rows.len(), cols, |i, to| {
                    input(rows[i].0, to);
                    if let Some(norm) = norm {
                        norm.apply_in_place(k.real, to);
                    }
                });
                let (x, scratch) = inputs.floats();
                let mut first = &mut **first;
                let pairs = layers.iter().flat_map(|layer| pairs_of(shares, layer.pairs));
                let products = pairs.map(|(pair, rows)| {
                    let w = weights.get(pair.a).shape();
                    let x = &x[rows.start * w.cols..rows.end * w.cols];
                    FloatProduct { w, x, out: take(&mut first, rows.len() * w.rows) }
                });
                matmul_floats(k, pool, scratch, products);
                self.add_second((k, pool, weights), layers);
            }
        }
    }

    /// Adds the products of a table's pairs to `out`, `[rows, dim]`; `decode` writes the row of the first
    /// matrix for a row of the step.
    pub fn add_rows(
        &mut self,
        tools: (&Kernels, &Pool, Weights<'_>),
        pairs: &[Lora],
        rows: usize,
        out: &mut [f32],
        decode: impl Fn(&CpuWeight, usize, &mut [f32]),
    ) {
        let mut layer = [Adapted { pairs, norm: None, out }];
        let mut next = 0;
        while !pairs.is_empty() && self.select(&mut next, rows, |row| row) {
            let mut first = &mut *self.first;
            for (pair, share) in pairs_of(&self.shares, pairs) {
                let a = tools.2.get(pair.a).shape();
                self.rows[share].iter().for_each(|(row, _)| decode(a, *row, take(&mut first, a.cols)));
            }
            self.add_second(tools, &mut layer);
        }
    }

    /// Selects the rows of the adapters from the `next`th of the step on, of as many adapters as there is
    /// memory for; false if no rows are left.
    fn select(&mut self, next: &mut usize, rows: usize, row_of: impl Fn(usize) -> usize) -> bool {
        self.rows.clear();
        self.shares.clear();
        while let Some(adapter) = self.used.get(*next) {
            let scales = &self.scales[*adapter as usize * self.max_rows..][..self.max_rows];
            let used = (0..rows).map(|i| (i, scales[row_of(i)])).filter(|(_, scale)| *scale != 0.0);
            let first = self.rows.len();
            if first + used.clone().count() > rows {
                break;
            }
            self.rows.extend(used);
            self.shares.push((*adapter, first..self.rows.len()));
            *next += 1;
        }
        !self.rows.is_empty()
    }

    /// Multiplies the first products of the selected rows by the layers' second matrices, and adds the
    /// results to the outputs.
    fn add_second(&mut self, (k, pool, weights): (&Kernels, &Pool, Weights<'_>), layers: &mut [Adapted<'_>]) {
        let Self { rows, shares, inputs, first, product, .. } = self;
        let outputs_of = |pairs: &[Lora]| weights.get(pairs[0].b).shape().rows;
        let (mut first, mut rest) = (&mut **first, &mut **product);
        let pairs = layers.iter().flat_map(|layer| pairs_of(shares, layer.pairs));
        let products = pairs.map(|(pair, share)| {
            // The first matrix was multiplied by the caller.
            let Lora { adapter: _, a: _, b, scale: of_pair } = *pair;
            let w = weights.get(b).shape();
            let x = take(&mut first, share.len() * w.cols);
            for ((_, scale), x) in rows[share.clone()].iter().zip(x.chunks_exact_mut(w.cols)) {
                let scale = scale * of_pair;
                x.iter_mut().for_each(|x| *x *= scale);
            }
            FloatProduct { w, x, out: take(&mut rest, share.len() * w.rows) }
        });
        matmul_floats(k, pool, inputs.floats().1, products);

        let mut rest = &**product;
        let with_products = layers.iter_mut().map(|Adapted { pairs, out, .. }| {
            let outputs = outputs_of(pairs);
            let n_rows: usize = pairs_of(shares, pairs).map(|(_, share)| share.len()).sum();
            let (products, after) = rest.split_at(n_rows * outputs);
            rest = after;
            ((*pairs, products), Grid::new(out, outputs))
        });
        let mut grids: Vec<_> = with_products.collect();
        let height = grids.iter().map(|(_, out)| out.rows()).max().unwrap_or(1);
        pool.tiles(&mut grids, height, WIDTH, |(pairs, products), mut out| {
            let cols = out.cols();
            let added = pairs_of(shares, pairs).flat_map(|(_, share)| &rows[share]);
            for ((row, _), product) in added.zip(products.chunks_exact(outputs_of(pairs))) {
                out.row_mut(*row).iter_mut().zip(&product[cols.clone()]).for_each(|(out, y)| *out += y);
            }
        });
    }
}

/// The pairs of the adapters in `shares`, with the rows that use them.
fn pairs_of<'a>(
    shares: &'a [(u32, Range<usize>)],
    pairs: &'a [Lora],
) -> impl Iterator<Item = (&'a Lora, Range<usize>)> {
    let pair_of = |adapter: u32| pairs.iter().find(move |pair| pair.adapter == adapter);
    shares.iter().filter_map(move |(adapter, rows)| Some((pair_of(*adapter)?, rows.clone())))
}

/// Removes the first `n` elements.
fn take<'a>(rest: &mut &'a mut [f32], n: usize) -> &'a mut [f32] {
    rest.split_off_mut(..n).expect("memory for the products of every layer")
}
