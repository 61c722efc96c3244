//! A gated delta net: convolution, recurrence, gated norm.
//!
//! The rows of a sequence are sequential, so tasks are split by head: each owns [`COLUMNS`] elements of a
//! head's values (half as many in heads of other lengths), and the matching part of the state. A row's output
//! does not depend, to the bit, on how the rows of its sequence are divided into steps.

use std::ops::Range;

use super::cx::Cx;
use super::pool::Grid;
use super::scratch::delta::Scratch;
use sterna_cpu_kernels::real::{COLUMNS, DeltaRow, HALF_COLUMNS, RealKernels, exp};
use sterna_program::{Act, Delta, StateDecl};

pub fn run(cx: &mut Cx<'_>, s: &Delta) {
    let Delta { u, z, a, b, state, conv, decay, dt, eps, ref norm, grouped, out } = *s;
    let (step, kernels, pool) = (cx.step, cx.k.real, cx.pool);
    let n = step.rows.len();
    let states = &mut cx.states[state.0 as usize];
    let StateDecl { n_heads, n_key_heads, head_dim, taps } = states.decl;
    let (channels, key_cols, value_cols) =
        (states.decl.channels(), 2 * n_key_heads * head_dim, n_heads * head_dim);
    let [u, z, a, b, out] = [u, z, a, b, out].map(|buf| buf.0 as usize);
    let [conv, decay, dt] = [conv, decay, dt].map(|w| cx.weights.vector(w));
    let norm = cx.weights.norm(norm);
    let Scratch { keys, values, runs } = &mut cx.scratch.delta;
    let (keys, values) = (&mut keys[..n * key_cols], &mut values[..n * value_cols]);

    states.begin(step);
    runs.clear();
    runs.extend(step.runs().map(|run| {
        let slots = step.pages.state(step.rows[run.start].seq).expect("the step was checked");
        (run, slots.to as usize)
    }));

    // Queries, keys and values are adjacent columns of `u`; the values are written to a buffer of their own.
    let u = cx.bufs[u].rows(n);
    let tails = &*states.tails;
    let convolution = Convolution { kernels, u, tails, conv, channels, taps, runs };
    let mut grids = [(0, Grid::new(&mut *keys, key_cols)), (key_cols, Grid::new(&mut *values, value_cols))];
    pool.tiles(&mut grids, 1, head_dim, |first, mut tile| {
        let (row, cols) = (tile.rows().start, tile.cols());
        let out = tile.row_mut(row);
        convolution.apply(row, first + cols.start, out);
        if *first == 0 {
            let is_query = cols.start < n_key_heads * head_dim;
            l2(kernels, eps, if is_query { 1.0 / (head_dim as f32).sqrt() } else { 1.0 }, out);
        }
    });
    for (run, slot) in &*runs {
        states.keep_tail(run.clone(), *slot, u);
    }

    let (keys, runs) = (&*keys, &*runs);
    let [a, b] = [a, b].map(|buf| cx.bufs[buf].rows(n));
    let grid = Grid::new(&mut *values, value_cols);
    let matrices = &mut states.matrices;
    let elems = if head_dim.is_multiple_of(COLUMNS) { COLUMNS } else { HALF_COLUMNS };
    pool.tiles_and_pieces(runs, grid, elems, matrices, head_dim * elems, |_, mut tile, state| {
        let head = tile.cols().start / head_dim;
        for row in tile.rows() {
            let of_row = &keys[row * key_cols..][..key_cols];
            let (queries, keys) = of_row.split_at(key_cols / 2);
            let at = head % n_key_heads * head_dim..(head % n_key_heads + 1) * head_dim;
            let of_head = DeltaRow {
                q: &queries[at.clone()],
                k: &keys[at],
                decay: exp(decay[head] * softplus(a[row * n_heads + head] + dt[head])),
                strength: 1.0 / (1.0 + exp(-b[row * n_heads + head])),
            };
            (kernels.delta)(of_head, state, tile.row_mut(row));
        }
    });

    let (values, rep) = (&*values, n_heads / n_key_heads);
    let [z, out] = cx.bufs.get_disjoint_mut([z, out]).expect("two buffers");
    let z = z.rows(n);
    pool.tiles(&mut [((), Grid::new(out.rows_mut(n), value_cols))], 1, head_dim, |(), mut tile| {
        let row = tile.rows().start;
        let place = tile.cols().start / head_dim;
        let head = if grouped { place % rep * n_key_heads + place / rep } else { place };
        let at = row * value_cols + head * head_dim;
        let out = tile.row_mut(row);
        norm.apply(kernels, &values[at..][..head_dim], out);
        (kernels.gate)(Act::Silu, &z[at..][..head_dim], out);
    });
}

/// The convolution of one stage over one step.
struct Convolution<'a> {
    kernels: &'a RealKernels,
    /// `[rows, channels]`.
    u: &'a [f32],
    /// `[slots, taps - 1, channels]`.
    tails: &'a [f32],
    /// `[channels * taps]`.
    conv: &'a [f32],
    channels: usize,
    taps: usize,
    runs: &'a [(Range<usize>, usize)],
}

impl Convolution<'_> {
    /// Computes SiLU of the convolution at a row, for the channels from `first` on.
    fn apply(&self, row: usize, first: usize, out: &mut [f32]) {
        let Self { u, tails, channels, taps, runs, .. } = *self;
        let (run, slot) = &runs[runs.partition_point(|(run, _)| run.end <= row)];
        let mut rows: [&[f32]; StateDecl::MAX_TAPS] = [&[]; StateDecl::MAX_TAPS];
        for (j, of_tap) in rows[..taps].iter_mut().enumerate() {
            // Rows before the step are at the end of the tail.
            let at = row + j;
            *of_tap = match at.checked_sub(run.start + taps - 1) {
                Some(in_run) => &u[(run.start + in_run) * channels + first..][..out.len()],
                None => &tails[(slot * (taps - 1) + at - run.start) * channels + first..][..out.len()],
            };
        }
        (self.kernels.convolve)(&rows[..taps], &self.conv[first * taps..][..out.len() * taps], out);
    }
}

/// `x = x scale / sqrt(sum(x^2) + eps)`.
fn l2(k: &RealKernels, eps: f32, scale: f32, x: &mut [f32]) {
    let factor = scale * (1.0 / ((k.sum_squares)(x, 0.0) + f64::from(eps)).sqrt()) as f32;
    x.iter_mut().for_each(|x| *x *= factor);
}

/// `ln(1 + e^x)`.
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { exp(x).ln_1p() }
}
