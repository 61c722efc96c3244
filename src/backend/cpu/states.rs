//! The recurrent states of a program.

use std::ops::Range;

use super::alloc::PartAllocator;
use super::pool::Pool;
use crate::memory::STATES_PART;
use crate::{KvPage, MemoryKind};
use sterna_cpu_kernels::{Aligned, Allocator};
use sterna_program::{Limits, RowStates, StateDecl, Step};

/// One layer's states.
pub struct States {
    pub decl: StateDecl,
    /// `[slots, n_heads, head_dim / n, key_dim, n]`: the matrices `S`, transposed. In delta nets `n` is
    /// `COLUMNS`, or `HALF_COLUMNS` for other head lengths.
    pub matrices: Aligned<f32>,
    /// `[slots, taps - 1, channels]`: the last inputs of the convolution, which it reads again.
    pub tails: Aligned<f32>,
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

    /// Initialises the slots that sequences write, from the states that they continue or with zeros. Writes
    /// the rows of each sequence with its slot to `runs`.
    pub fn begin(&mut self, step: &Step<'_>, runs: &mut Vec<(Range<usize>, usize)>) {
        runs.clear();
        for run in step.runs() {
            let slots = step.pages.state(step.rows[run.start].seq).expect("the step was checked");
            let (to, parts) = (slots.to as usize, self.parts());
            runs.push((run, to));
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

    /// Stores the last rows of `u`, `[rows, channels]`, that the convolution will read again: of each
    /// sequence, and of its earlier rows whose states are kept.
    pub fn keep_tails(&mut self, step: &Step<'_>, runs: &[(Range<usize>, usize)], u: &[f32]) {
        for (run, slot) in runs {
            let tail_elems = self.decl.tail_elems();
            for (n_rows, kept) in row_states(step, run).iter() {
                let kept = kept as usize;
                self.tails.copy_within(slot * tail_elems..(slot + 1) * tail_elems, kept * tail_elems);
                self.keep_tail(run.start..run.start + n_rows, kept, u);
            }
            self.keep_tail(run.clone(), *slot, u);
        }
    }

    fn keep_tail(&mut self, run: Range<usize>, slot: usize, u: &[f32]) {
        let (channels, kept) = (self.decl.channels(), self.decl.taps - 1);
        let tail = &mut self.tails[slot * kept * channels..][..kept * channels];
        let new = run.len().min(kept);
        tail.copy_within(new * channels.., 0);
        tail[(kept - new) * channels..].copy_from_slice(&u[(run.end - new) * channels..run.end * channels]);
    }

    /// Calls `advance` with the matrices and the rows of the sequences, each with its slot: once, or in parts
    /// that end at the rows whose states are kept.
    pub fn advance(
        &mut self,
        step: &Step<'_>,
        pool: &Pool,
        runs: &[(Range<usize>, usize)],
        mut advance: impl FnMut(&mut [f32], &[(Range<usize>, usize)]),
    ) {
        let ends_of = |run: &Range<usize>| {
            let kept = row_states(step, run);
            (run.start + kept.first + 1, kept.slots.as_slice())
        };
        let n_kept = runs.iter().map(|(run, _)| ends_of(run).1.len()).max().unwrap_or(0);
        if n_kept == 0 {
            return advance(&mut self.matrices, runs);
        }
        let elems = self.decl.matrix_elems();
        let mut parts: Vec<(Range<usize>, usize)> = Vec::with_capacity(runs.len());
        for i in 0..=n_kept {
            let part = |(run, slot): &(Range<usize>, usize)| {
                let (first_end, kept) = ends_of(run);
                let end = |i: usize| if i < kept.len() { first_end + i } else { run.end };
                (if i == 0 { run.start } else { end(i - 1) }..end(i), *slot)
            };
            parts.clear();
            parts.extend(runs.iter().map(part).filter(|(rows, _)| !rows.is_empty()));
            advance(&mut self.matrices, &parts);
            for (run, slot) in runs {
                if let Some(kept) = ends_of(run).1.get(i) {
                    copy(pool, &mut self.matrices, elems, *slot, *kept as usize);
                }
            }
        }
    }
}

/// Slots for the states after rows of the sequence that has these rows in the step.
fn row_states<'a>(step: &Step<'a>, run: &Range<usize>) -> &'a RowStates {
    step.pages.row_states(step.rows[run.start].seq)
}

/// Copies a slot of `elems` elements to another one.
fn copy(pool: &Pool, slots: &mut [f32], elems: usize, from: usize, to: usize) {
    // A task copies 64 KiB.
    const CHUNK: usize = 1 << 14;
    let (before, after) = slots.split_at_mut(from.max(to) * elems);
    let (from, to) = match from < to {
        true => (&before[from * elems..][..elems], &mut after[..elems]),
        false => (&after[..elems], &mut before[to * elems..][..elems]),
    };
    pool.chunks_mut(to, CHUNK, |i, to| to.copy_from_slice(&from[i * CHUNK..][..to.len()]));
}

/// The rows that a convolution reads in one step.
pub struct Window<'a> {
    /// `[rows, channels]`.
    pub u: &'a [f32],
    /// `[slots, taps - 1, channels]`.
    pub tails: &'a [f32],
    pub channels: usize,
    pub taps: usize,
    pub runs: &'a [(Range<usize>, usize)],
}

impl<'a> Window<'a> {
    /// The rows that belong to the taps of a row, each with `len` channels from `first` on. Only the first
    /// `taps` are used.
    pub fn rows(&self, row: usize, first: usize, len: usize) -> [&'a [f32]; StateDecl::MAX_TAPS] {
        let Self { u, tails, channels, taps, runs } = *self;
        let (run, slot) = &runs[runs.partition_point(|(run, _)| run.end <= row)];
        let mut rows: [&[f32]; StateDecl::MAX_TAPS] = [&[]; StateDecl::MAX_TAPS];
        for (j, of_tap) in rows[..taps].iter_mut().enumerate() {
            // Rows before the step are at the end of the tail.
            let at = row + j;
            *of_tap = match at.checked_sub(run.start + taps - 1) {
                Some(in_run) => &u[(run.start + in_run) * channels + first..][..len],
                None => &tails[(slot * (taps - 1) + at - run.start) * channels + first..][..len],
            };
        }
        rows
    }
}
