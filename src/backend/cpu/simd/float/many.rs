//! Some activation rows: a piece of a strip of weight rows is decoded and multiplied with blocks of them.

use std::marker::PhantomData;
use std::ops::Range;
use std::slice::from_raw_parts;

use super::super::lanes::{Kernel, Lanes, array, array_mut};
use super::super::{F32Rows, FLOAT_PIECE, FLOAT_STRIP, Product, Tile};
use super::{Ahead, Form, TailFn};

/// Maximum number of activation rows of a block.
pub(super) const MAX_ROWS: usize = 8;

/// Maximum number of weights in blocks that are multiplied while they are decoded, with a few more activation
/// rows: the weights of several rows must fit into registers.
const DIRECT: usize = 32;

/// Cache lines prefetched while a block is multiplied with a whole piece: one per 16 inputs.
const BLOCK_LINES: usize = FLOAT_PIECE / 16;

/// Activation rows of a block, and of the smaller block that is used if it is sufficient.
pub(super) const fn rows<L: Lanes>() -> (usize, usize) {
    match L::FLOAT_BLOCK {
        (3, 8) => (8, 4),
        _ => (2, 1),
    }
}

/// Cache lines prefetched during the products of a strip with a block of activation rows.
pub(super) const fn lines<L: Lanes>() -> usize {
    match L::FLOAT_BLOCK {
        (3, 8) => FLOAT_STRIP / 3 * BLOCK_LINES,
        _ => 0,
    }
}

/// Function that multiplies activation rows with a decoded piece: see [`Multiply`].
pub(super) type MultiplyFn = unsafe fn(
    decoded: &[f32],
    acts: F32Rows<'_>,
    rows: Range<usize>,
    piece: Range<usize>,
    ahead: Ahead,
    sums: &mut [f32],
);

/// The [`MultiplyFn`] of an instruction set.
///
/// # Safety
/// The piece has a multiple of 16 inputs, and is decoded.
pub(super) unsafe fn multiply<L: Lanes>(
    decoded: &[f32],
    acts: F32Rows<'_>,
    rows: Range<usize>,
    piece: Range<usize>,
    ahead: Ahead,
    sums: &mut [f32],
) {
    L::vectorize(Multiply { decoded, acts, rows, piece, ahead, sums });
}

/// Adds the products of activation rows with a piece of [`FLOAT_STRIP`] weight rows to their sums, one block
/// of activation rows after another, `[FLOAT_STRIP / R, T, R, 16]`.
struct Multiply<'a> {
    /// `[FLOAT_STRIP, FLOAT_PIECE]`.
    decoded: &'a [f32],
    acts: F32Rows<'a>,
    rows: Range<usize>,
    piece: Range<usize>,
    ahead: Ahead,
    sums: &'a mut [f32],
}

impl Kernel for Multiply<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        match L::FLOAT_BLOCK {
            (3, 8) => self.all::<L, 3, 8, 4>(l),
            _ => self.all::<L, 2, 2, 1>(l),
        }
    }
}

impl Multiply<'_> {
    /// Processes `R` weight rows and `T` activation rows at a time, or `LESS` if that is sufficient.
    #[inline(always)]
    fn all<L: Lanes, const R: usize, const T: usize, const LESS: usize>(mut self, l: L) {
        for row in self.rows.clone().step_by(T) {
            if self.rows.end - row <= LESS {
                self.blocks::<L, R, LESS>(l, row);
            } else {
                self.blocks::<L, R, T>(l, row);
            }
        }
    }

    /// Multiplies up to `T` activation rows.
    #[inline(always)]
    fn blocks<L: Lanes, const R: usize, const T: usize>(&mut self, l: L, row: usize) {
        let piece = self.piece.clone();
        let acts: [&[f32]; T] =
            std::array::from_fn(|t| &self.acts.row((row + t).min(self.rows.end - 1))[piece.clone()]);
        let sums = &mut self.sums[(row - self.rows.start) * FLOAT_STRIP * 16..];
        for (r, sums) in (0..FLOAT_STRIP).step_by(R).zip(sums.chunks_exact_mut(16 * R * T)) {
            let weights: [&[f32]; R] =
                std::array::from_fn(|i| &self.decoded[(r + i) * FLOAT_PIECE..][..piece.len()]);
            let ahead = self.ahead.take(BLOCK_LINES);
            // SAFETY: all rows have the length of the piece, and the chunk has the sums.
            unsafe { block::<L, R, T>(l, weights, acts, piece.start > 0, ahead, sums.as_mut_ptr()) };
        }
    }
}

/// Function that finishes the outputs of a strip: see [`Finish`].
pub(super) type FinishFn = fn(
    &Product<'_>,
    acts: F32Rows<'_>,
    tile: &mut Tile<'_, f32>,
    rows: Range<usize>,
    first: usize,
    sums: &[f32],
    tail: Option<TailFn>,
);

/// The [`FinishFn`] of an instruction set.
pub(super) fn finish<L: Lanes>(
    product: &Product<'_>,
    acts: F32Rows<'_>,
    tile: &mut Tile<'_, f32>,
    rows: Range<usize>,
    first: usize,
    sums: &[f32],
    tail: Option<TailFn>,
) {
    L::vectorize(Finish { product, acts, tile, rows, first, sums, tail });
}

/// Finishes up to [`FLOAT_STRIP`] outputs from `first` on.
struct Finish<'a, 'b> {
    product: &'a Product<'a>,
    acts: F32Rows<'a>,
    tile: &'a mut Tile<'b, f32>,
    rows: Range<usize>,
    first: usize,
    /// Sums as written by [`Multiply`].
    sums: &'a [f32],
    /// Products of the inputs after the last whole 16, if there are any.
    tail: Option<TailFn>,
}

impl Kernel for Finish<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        match L::FLOAT_BLOCK {
            (3, 8) => self.all::<L, 3, 8, 4>(l),
            _ => self.all::<L, 2, 2, 1>(l),
        }
    }
}

impl Finish<'_, '_> {
    #[inline(always)]
    fn all<L: Lanes, const R: usize, const T: usize, const LESS: usize>(self, l: L) {
        let Self { product, acts, tile, rows, first, sums, tail } = self;
        for at in rows.clone().step_by(T) {
            let (n, end) = (if rows.end - at <= LESS { LESS } else { T }, rows.end.min(at + T));
            let sums = &sums[(at - rows.start) * FLOAT_STRIP * 16..][..n * FLOAT_STRIP * 16];
            let mut totals = [0.0; FLOAT_STRIP * MAX_ROWS];
            for (totals, sums) in totals.chunks_mut(16).zip(sums.chunks(256)) {
                // SAFETY: there are 16 vectors, or fewer that are summed one by one.
                unsafe {
                    if sums.len() == 256 {
                        l.store(array_mut(totals.as_mut_ptr()), l.sum_each(array(sums.as_ptr())));
                    } else {
                        for (sum, lanes) in totals.iter_mut().zip(sums.chunks_exact(16)) {
                            *sum = l.sum(l.load(array(lanes.as_ptr())));
                        }
                    }
                }
            }
            for (t, row) in (at..end).enumerate() {
                let acts = acts.row(row);
                let out = &mut tile.row_mut(row)[first..];
                for (i, out) in out.iter_mut().take(FLOAT_STRIP).enumerate() {
                    let sum = totals[(i / R * n + t) * R + i % R];
                    let tail = tail.map_or(0.0, |tail| tail(product.row(first + i), acts));
                    product.finish(out, first + i, sum + tail);
                }
            }
        }
    }
}

/// Function that multiplies a block of activation rows with a piece while it is decoded: see [`Direct`].
pub(super) type DirectFn = unsafe fn(
    weights: &[*const u8; FLOAT_STRIP],
    n_blocks: usize,
    acts: F32Rows<'_>,
    rows: Range<usize>,
    piece: Range<usize>,
    ahead: Ahead,
    sums: &mut [f32],
);

/// The [`DirectFn`] of a format with short blocks, for sets with blocks of eight activation rows.
pub(super) const fn direct<L: Lanes, F: Form>() -> Option<DirectFn> {
    match L::FLOAT_BLOCK {
        (3, 8) if F::BLOCK <= DIRECT => Some(multiply_direct::<L, F>),
        _ => None,
    }
}

/// See [`direct`].
///
/// # Safety
/// The weights have `n_blocks` blocks, which are the piece.
unsafe fn multiply_direct<L: Lanes, F: Form>(
    weights: &[*const u8; FLOAT_STRIP],
    n_blocks: usize,
    acts: F32Rows<'_>,
    rows: Range<usize>,
    piece: Range<usize>,
    ahead: Ahead,
    sums: &mut [f32],
) {
    L::vectorize(Direct::<F> { weights, n_blocks, acts, rows, piece, ahead, sums, form: PhantomData });
}

/// As [`Multiply`], for up to 8 activation rows, with weights that are still encoded.
struct Direct<'a, F> {
    weights: &'a [*const u8; FLOAT_STRIP],
    n_blocks: usize,
    acts: F32Rows<'a>,
    rows: Range<usize>,
    piece: Range<usize>,
    ahead: Ahead,
    sums: &'a mut [f32],
    form: PhantomData<F>,
}

impl<F: Form> Kernel for Direct<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        const R: usize = 3;
        const T: usize = MAX_ROWS;
        let acts: [*const f32; T] = std::array::from_fn(|t| {
            self.acts.row((self.rows.start + t).min(self.rows.end - 1))[self.piece.clone()].as_ptr()
        });
        for (r, sums) in (0..FLOAT_STRIP).step_by(R).zip(self.sums.chunks_exact_mut(16 * R * T)) {
            let weights: [*const u8; R] = std::array::from_fn(|i| self.weights[r + i]);
            let lines = self.ahead.lines.div_ceil((FLOAT_STRIP - r) / R);
            let ahead = self.ahead.take(lines);
            // SAFETY: blocks are within rows, 16 floats from `at` within a block, sums within their chunk.
            unsafe {
                let mut acc = [[l.splat(0.0); R]; T];
                if self.piece.start > 0 {
                    for t in 0..T {
                        for i in 0..R {
                            acc[t][i] = l.load(array(sums.as_ptr().add(16 * (t * R + i))));
                        }
                    }
                }
                for block in 0..self.n_blocks {
                    let mut vectors = [[l.splat(0.0); DIRECT / 16]; R];
                    for i in 0..R {
                        // One prefetch per 64 bytes of weights, spread over the rows.
                        if (block * R + i) * F::BYTES % 64 < F::BYTES {
                            l.prefetch_far(ahead.wrapping_add((block * R + i) * F::BYTES));
                        }
                        F::decode(
                            l,
                            from_raw_parts(weights[i].add(block * F::BYTES), F::BYTES),
                            #[inline(always)]
                            |at, weights| vectors[i][at / 16] = weights,
                        );
                    }
                    for at in (0..F::BLOCK).step_by(16) {
                        for t in 0..T {
                            let x = l.load(array(acts[t].add(block * F::BLOCK + at)));
                            for i in 0..R {
                                acc[t][i] = l.fma(vectors[i][at / 16], x, acc[t][i]);
                            }
                        }
                    }
                }
                for t in 0..T {
                    for i in 0..R {
                        l.store(array_mut(sums.as_mut_ptr().add(16 * (t * R + i))), acc[t][i]);
                    }
                }
            }
        }
    }
}

/// Multiplies `R` weight rows with `T` activation rows; `sums`, `[T, R, 16]`, is added to if `go_on`.
///
/// # Safety
/// All rows have the same length, a multiple of 16, and `sums` has this size.
#[inline(always)]
pub(super) unsafe fn block<L: Lanes, const R: usize, const T: usize>(
    l: L,
    weights: [&[f32]; R],
    acts: [&[f32]; T],
    go_on: bool,
    ahead: *const u8,
    sums: *mut f32,
) {
    // SAFETY: `k` is at least 16 elements before the end of a row; the caller ensures the size of `sums`.
    unsafe {
        let mut acc = [[l.splat(0.0); R]; T];
        if go_on {
            for t in 0..T {
                for r in 0..R {
                    acc[t][r] = l.load(array(sums.add(16 * (t * R + r))));
                }
            }
        }
        for k in (0..weights[0].len()).step_by(16) {
            // Larger blocks have cycles to spare for it.
            if T >= 8 {
                l.prefetch_far(ahead.wrapping_add(4 * k));
            }
            let mut vectors = [l.splat(0.0); R];
            for r in 0..R {
                vectors[r] = l.load(array(weights[r].as_ptr().add(k)));
            }
            for t in 0..T {
                let x = l.load(array(acts[t].as_ptr().add(k)));
                for r in 0..R {
                    acc[t][r] = l.fma(vectors[r], x, acc[t][r]);
                }
            }
        }
        for t in 0..T {
            for r in 0..R {
                l.store(array_mut(sums.add(16 * (t * R + r))), acc[t][r]);
            }
        }
    }
}
