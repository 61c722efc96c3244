//! A gated delta net: convolution, recurrence, gated norm.
//!
//! The rows of a sequence are sequential, so tasks are split by head: each owns [`COLUMNS`] elements of a
//! head's values, and the matching part of the state. A row's output does not depend, to the bit, on how the
//! rows of its sequence are divided into steps.

use std::ops::Range;

use super::Cx;
use super::alloc::PartAllocator;
use super::pool::Grid;
use super::simd::real::{COLUMNS, DeltaRow, RealKernels, exp};
use super::simd::{Aligned, Allocator};
use crate::memory::STATES_PART;
use crate::{KvPage, MemoryKind};
use sterna_program::{Act, Delta, Limits, Program, StateDecl, Step};

/// One layer's states.
pub struct States {
    decl: StateDecl,
    /// `[slots, n_heads, head_dim / COLUMNS, head_dim, COLUMNS]`: the matrices `S`, transposed.
    matrices: Aligned<f32>,
    /// `[slots, taps - 1, channels]`: the last inputs of the convolution, which it reads again.
    tails: Aligned<f32>,
}

impl States {
    pub fn new(on: &mut impl PartAllocator, decl: StateDecl, limits: Limits) -> Self {
        let on = on.part(MemoryKind::Kv, STATES_PART);
        let room = |on: &mut _, elems: usize| Allocator::aligned(on, limits.states.saturating_mul(elems));
        let (matrices, tails) = (room(on, decl.matrix_elems()), room(on, decl.tail_elems()));
        Self { decl, matrices, tails }
    }

    /// Bytes of a page; 0 if it is not a page of states.
    pub fn page_bytes(&self, page: KvPage) -> usize {
        if matches!(page, KvPage::State(_)) { self.decl.bytes() } else { 0 }
    }

    /// Copies a slot to the front of `out`, and returns the rest of `out`.
    pub fn read_page<'a>(&self, page: KvPage, out: &'a mut [u8]) -> &'a mut [u8] {
        let KvPage::State(slot) = page else { return out };
        let (elems, slot) = (self.parts(), slot as usize);
        [&self.matrices, &self.tails].into_iter().zip(elems).fold(out, |out, (from, elems)| {
            let (to, rest) = out.split_at_mut(elems * size_of::<f32>());
            to.copy_from_slice(bytemuck::cast_slice(&from[slot * elems..][..elems]));
            rest
        })
    }

    /// The reverse of [`read_page`](Self::read_page); returns the rest of `bytes`.
    pub fn write_page<'a>(&mut self, page: KvPage, bytes: &'a [u8]) -> &'a [u8] {
        let KvPage::State(slot) = page else { return bytes };
        let (elems, slot) = (self.parts(), slot as usize);
        [&mut self.matrices, &mut self.tails].into_iter().zip(elems).fold(bytes, |bytes, (to, elems)| {
            let (from, rest) = bytes.split_at(elems * size_of::<f32>());
            bytemuck::cast_slice_mut(&mut to[slot * elems..][..elems]).copy_from_slice(from);
            rest
        })
    }

    fn parts(&self) -> [usize; 2] {
        [self.decl.matrix_elems(), self.decl.tail_elems()]
    }

    /// Initialises the slots that sequences write, from the states that they continue or with zeros.
    fn begin(&mut self, step: &Step<'_>) {
        for run in step.runs() {
            let slots = step.pages.state(step.rows[run.start].seq).expect("the step was checked");
            let (to, parts) = (slots.to as usize, self.parts());
            for (data, elems) in [&mut self.matrices, &mut self.tails].into_iter().zip(parts) {
                match slots.from.map(|from| from as usize) {
                    None => data[to * elems..][..elems].fill(0.0),
                    Some(from) if from != to => {
                        data.copy_within(from * elems..(from + 1) * elems, to * elems)
                    }
                    Some(_) => {}
                }
            }
        }
    }

    /// Stores the last rows of `u`, `[rows, channels]`, that the convolution will read again.
    fn keep_tail(&mut self, run: Range<usize>, slot: usize, u: &[f32]) {
        let (channels, kept) = (self.decl.channels(), self.decl.taps - 1);
        let tail = &mut self.tails[slot * kept * channels..][..kept * channels];
        let new = run.len().min(kept);
        tail.copy_within(new * channels.., 0);
        tail[(kept - new) * channels..].copy_from_slice(&u[(run.end - new) * channels..run.end * channels]);
    }
}

/// Sizes of the largest delta nets of a program.
#[derive(Clone, Copy, Default)]
pub struct Shape {
    key_cols: usize,
    value_cols: usize,
}

impl Shape {
    /// The smallest shape that holds this one and a stage.
    pub fn with(self, p: &Program, s: &Delta) -> Self {
        let StateDecl { n_heads, n_key_heads, head_dim, taps: _ } = *p.state_decl(s.state);
        Self {
            key_cols: self.key_cols.max(2 * n_key_heads * head_dim),
            value_cols: self.value_cols.max(n_heads * head_dim),
        }
    }
}

/// Scratch memory for delta nets.
pub struct Scratch {
    /// Queries and keys, `[rows, 2 * n_key_heads * head_dim]`.
    keys: Aligned<f32>,
    /// Values, later outputs of the recurrence, `[rows, n_heads * head_dim]`.
    values: Aligned<f32>,
    /// Rows of each sequence with the slot of its state.
    runs: Vec<(Range<usize>, usize)>,
}

impl Scratch {
    /// Memory for stages of up to `shape`, in steps of up to `rows` rows.
    pub fn new(on: &mut impl Allocator, shape: Shape, rows: usize) -> Self {
        let n_runs = if shape.value_cols > 0 { rows } else { 0 };
        Self {
            keys: on.aligned(rows.saturating_mul(shape.key_cols)),
            values: on.aligned(rows.saturating_mul(shape.value_cols)),
            runs: on.room(n_runs),
        }
    }
}

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
    pool.tiles_and_pieces(runs, grid, COLUMNS, matrices, head_dim * COLUMNS, |_, mut tile, state| {
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
