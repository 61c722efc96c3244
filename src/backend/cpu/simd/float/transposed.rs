//! Many activation rows: weight rows are decoded and transposed, so that a vector holds the weights of 16
//! rows for one input. An activation is broadcast to a vector, and no vector is summed in the end: lanes are
//! added as vectors, in the same order and the same tree as elsewhere, which gives the same bits.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::null;

use super::super::lanes::{Kernel, Lanes, array, array_mut};
use super::super::{F32Rows, MAX_BLOCK, Product, STRIP, Tile};

/// The lanes in the order in which their sums are added: each to the one before, pairs to pairs, and so on.
/// The permutation is its own inverse.
const LANES: [usize; 16] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

/// Number of activation rows from which transposing pays: measured with AVX-512 and with AVX2.
pub const fn least<L: Lanes>() -> usize {
    if L::FLOAT_BLOCK.1 >= 8 { 24 } else { 48 }
}

/// Function that transposes decoded weights of 16 rows: see [`Transpose`].
pub(super) type TransposeFn =
    fn(decoded: &[f32], n: usize, weights: &mut [f32], steps: usize, step: usize, col: usize);

/// The [`TransposeFn`] of an instruction set.
pub(super) fn transpose<L: Lanes>(
    decoded: &[f32],
    n: usize,
    weights: &mut [f32],
    steps: usize,
    step: usize,
    col: usize,
) {
    assert!(decoded.len() >= 16 * MAX_BLOCK && 16 * n <= MAX_BLOCK);
    assert!(step + n <= steps && weights.len() >= steps * 16 * STRIP && col + 16 <= STRIP);
    L::vectorize(Transpose { decoded, n, weights, steps, step, col });
}

/// Writes `n` times 16 weights of 16 rows to a piece of a strip, `[16, steps, STRIP]`, from a step and a
/// column on; lanes are in the order of [`LANES`].
struct Transpose<'a> {
    /// `[16, MAX_BLOCK]`.
    decoded: &'a [f32],
    n: usize,
    weights: &'a mut [f32],
    steps: usize,
    step: usize,
    col: usize,
}

impl Kernel for Transpose<'_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for i in 0..self.n {
            // SAFETY: `transpose` has checked the lengths.
            unsafe {
                let mut rows = [l.splat4(&[0; 4]); 16];
                for r in 0..16 {
                    rows[r] = l.load_bytes(array(self.decoded.as_ptr().add(r * MAX_BLOCK + 16 * i).cast()));
                }
                let lanes = l.transpose(rows);
                for lane in 0..16 {
                    let at = (LANES[lane] * self.steps + self.step + i) * STRIP + self.col;
                    l.store_bytes(array_mut(self.weights.as_mut_ptr().add(at).cast()), lanes[lane]);
                }
            }
        }
    }
}

/// Function that multiplies a piece: see [`MultiplyTransposed`].
pub(super) type MultiplyFn = fn(MultiplyTransposed<'_, '_, '_>);

/// The [`MultiplyFn`] of an instruction set.
pub(super) fn multiply<L: Lanes>(transposed: MultiplyTransposed<'_, '_, '_>) {
    L::vectorize(transposed);
}

/// Multiplies some activation rows with a piece of a strip that [`transpose`] has filled, and finishes the
/// outputs after the last piece.
pub struct MultiplyTransposed<'a, 'b, 'c> {
    pub product: &'a Product<'a>,
    pub acts: F32Rows<'a>,
    pub rows: Range<usize>,
    /// First weight row of the strip.
    pub first: usize,
    pub piece: Range<usize>,
    /// Weights as written by [`transpose`].
    pub weights: &'a [f32],
    /// Sums kept for the next piece, `[rows, 16, STRIP]` with some rows at a time.
    pub sums: &'a mut [f32],
    pub tile: &'c mut Tile<'b, f32>,
}

impl Kernel for MultiplyTransposed<'_, '_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        match L::FLOAT_BLOCK {
            (3, 8) => self.multiply::<L, 3, 8, 4>(l),
            _ => self.multiply::<L, 1, 6, 3>(l),
        }
    }
}

impl MultiplyTransposed<'_, '_, '_> {
    /// Processes `R` vectors of weights and `T` activation rows at a time, or `LESS` if that is sufficient.
    #[inline(always)]
    fn multiply<L: Lanes, const R: usize, const T: usize, const LESS: usize>(mut self, l: L) {
        let steps = self.piece.len() / 16;
        assert!(self.piece.len().is_multiple_of(16) && self.weights.len() >= steps * 16 * STRIP);
        let is_whole = self.piece == (0..self.acts.cols);
        assert!(is_whole || self.sums.len() >= self.rows.len().next_multiple_of(T) * 16 * STRIP);
        let mut sums = 0;
        for row in self.rows.clone().step_by(T) {
            // SAFETY: the lengths were checked.
            unsafe {
                if self.rows.end - row <= LESS {
                    self.strip::<L, R, LESS>(l, row, sums);
                } else {
                    self.strip::<L, R, T>(l, row, sums);
                }
            }
            if !is_whole {
                sums += T * 16 * STRIP;
            }
        }
    }

    /// Multiplies up to `T` activation rows with the strip. `sums` is the index of their sums.
    ///
    /// # Safety
    /// The strip and the sums have been checked to have these sizes.
    #[inline(always)]
    unsafe fn strip<L: Lanes, const R: usize, const T: usize>(&mut self, l: L, row: usize, sums: usize) {
        let (acts, rows, piece) = (self.acts, self.rows.clone(), self.piece.clone());
        let (steps, len) = (piece.len() / 16, 16 * R * T);
        let x: [*const f32; T] =
            std::array::from_fn(|t| acts.row((row + t).min(rows.end - 1))[piece.clone()].as_ptr());
        let mut carried = MaybeUninit::<Carried>::uninit();
        let carried: *mut f32 = carried.as_mut_ptr().cast();
        for col in (0..STRIP).step_by(16 * R) {
            for n in 0..16 {
                // SAFETY: strip, activations, carried sums and kept sums have these sizes.
                unsafe {
                    let waiting = self.sums.as_mut_ptr().add(sums + col * 16 * T + n * len);
                    let x: [*const f32; T] = std::array::from_fn(|t| x[t].add(LANES[n]));
                    let weights = self.weights.as_ptr().add(n * steps * STRIP + col);
                    let from = if piece.start == 0 { null() } else { waiting.cast_const() };
                    if piece.end == acts.cols {
                        // Sums are carried as in a binary counter.
                        let n_carries = n.trailing_ones() as usize;
                        let to = carried.add(n_carries * len);
                        lane::<L, R, T>(l, weights, x, steps, from, carried, n_carries, to);
                    } else {
                        lane::<L, R, T>(l, weights, x, steps, from, carried, 0, waiting);
                    }
                }
            }
            if piece.end < acts.cols {
                continue;
            }
            for t in 0..T.min(rows.end - row) {
                let out = self.tile.row_mut(row + t);
                for r in 0..R {
                    let col = self.first + col + 16 * r;
                    // SAFETY: `carried` has space for five levels.
                    let values = unsafe { array(carried.add(4 * len + 16 * (t * R + r))) };
                    let Some(out) = out.get_mut(col..) else { break };
                    if let Some(out) = out.first_chunk_mut() {
                        self.product.finish_16(l, out, col, l.load(values));
                    } else {
                        for (i, out) in out.iter_mut().enumerate() {
                            self.product.finish(out, col + i, values[i]);
                        }
                    }
                }
            }
        }
    }
}

/// Sums of 1, 2, 4, 8 and all 16 lanes, of up to 8 activation rows with three vectors of weights.
#[repr(C, align(64))]
struct Carried([[[f32; 16 * 3]; 8]; 5]);

/// Products of one lane: `steps` vectors of weights and inputs of `T` rows, 16 apart, added to `from` if it
/// is not null; then the carried sums of lanes are added. `from`, `to` and each of `carried` are
/// `[T, R, 16]`.
///
/// # Safety
/// The pointers are valid for these sizes.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
unsafe fn lane<L: Lanes, const R: usize, const T: usize>(
    l: L,
    weights: *const f32,
    x: [*const f32; T],
    steps: usize,
    from: *const f32,
    carried: *const f32,
    n_carries: usize,
    to: *mut f32,
) {
    // SAFETY: the caller ensures all of it.
    unsafe {
        let mut acc = [[l.splat(0.0); R]; T];
        if !from.is_null() {
            for t in 0..T {
                for r in 0..R {
                    acc[t][r] = l.load(array(from.add(16 * (t * R + r))));
                }
            }
        }
        for step in 0..steps {
            let mut vectors = [l.splat(0.0); R];
            for r in 0..R {
                vectors[r] = l.load(array(weights.add(step * STRIP + 16 * r)));
            }
            for t in 0..T {
                let x = l.splat(*x[t].add(16 * step));
                for r in 0..R {
                    acc[t][r] = l.fma(vectors[r], x, acc[t][r]);
                }
            }
        }
        for level in 0..n_carries {
            for t in 0..T {
                for r in 0..R {
                    let before = l.load(array(carried.add(16 * ((level * T + t) * R + r))));
                    acc[t][r] = l.add(before, acc[t][r]);
                }
            }
        }
        for t in 0..T {
            for r in 0..R {
                l.store(array_mut(to.add(16 * (t * R + r))), acc[t][r]);
            }
        }
    }
}
