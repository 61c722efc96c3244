//! Products with one or two activation rows.
//!
//! Weight rows are read one after another, in memory order, which the hardware prefetcher follows. The sums
//! of each 16 inputs of a row and the row's scales are kept until all 16 rows have theirs; then each lane is
//! one row.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;
use std::slice::from_raw_parts;

use super::super::lanes::{Kernel, Lanes, array, array_mut, slot};
use super::super::{ActBlock, BLOCK_PIECE, BlockRows, SUMMED_ROWS, UNIT};
use super::codes::Coded;
use super::{Of, TOGETHER, Work, add, dot, head, none};

/// Inputs of a weight row that are multiplied before the next row's, limited by the space for sums.
const PIECE: usize = SUMMED_ROWS * 16;

/// Prefetch distance in bytes. Two cores of an EPYC (Zen 5) that read 38 GB/s together read Q4_K at 25 GB/s
/// without prefetching, at 34 to 36 GB/s with 4 KiB, 36 to 37 with 8 KiB and 35 with 16 KiB.
const AHEAD: usize = 8192;

/// The kernels for a few activation rows: products with 16 weight rows, and sums of their lanes.
#[derive(Clone, Copy)]
pub(super) struct Few {
    add_up: AddUpFn,
    lanes: LanesFn,
}

impl Few {
    /// The kernels for `T` activation rows, one or two.
    pub(super) const fn of<L: Lanes, B: Lanes, F: Coded, const T: usize>() -> Self {
        const {
            assert!(T == 1 || T == 2);
            assert!(F::BLOCK == UNIT || UNIT / F::BLOCK * F::BYTES <= LONGEST);
        }
        let is_signed = F::ZERO.is_none();
        Self {
            add_up: add_up::<B, F, T>,
            lanes: if is_signed && B::ZERO != 0 { lanes::<B, F, T> } else { lanes::<L, F, T> },
        }
    }
}

/// Function that multiplies `n` of 16 weight rows: see [`AddUp`].
type AddUpFn = unsafe fn(
    rows: &[*const u8; TOGETHER],
    n: usize,
    q: &[*const i8; 2],
    len: usize,
    heads: *mut [u8; 16],
    sums: *mut i32,
);

/// Function that adds the sums of a piece of 16 weight rows to the outputs' sums: see [`AddLanes`].
type LanesFn = unsafe fn(
    blocks: &[*const ActBlock; 2],
    inputs: Range<usize>,
    sums: *const i32,
    heads: *const [u8; 16],
    total: &mut [[f32; TOGETHER]; 2],
);

impl Work<'_, '_> {
    /// Multiplies one or two activation rows with up to 16 weight rows.
    pub(super) fn gemv(&mut self, rows: Range<usize>, first: usize) {
        let (ty, cols) = (self.ty, self.product.cols);
        let few = &ty.few[rows.len() - 1];
        let n_rows = TOGETHER.min(self.tile.cols().len() - first);
        // Including the padding.
        let act = |row: usize| {
            let stride = BlockRows::stride(cols);
            self.acts.bytes[row * stride..][..stride].as_ptr()
        };
        let acts = [act(rows.start), act(rows.end - 1)];
        let blocks = [rows.start, rows.end - 1].map(|row| self.acts.row(row).1.as_ptr());
        let sums = self.scratch.sums[..rows.len() * TOGETHER * PIECE / 16].as_mut_ptr().cast::<i32>();
        let heads = self.scratch.codes[..TOGETHER * PIECE / UNIT * ty.head].as_mut_ptr().cast::<[u8; 16]>();
        let weights = self.product.rows::<TOGETHER>(first);
        let mut total = [[0.0; TOGETHER]; 2];
        for start in (0..cols).step_by(PIECE) {
            let len = (cols - start).min(PIECE);
            let at = ty.bytes_of(start);
            let weights = weights.map(|row| row.wrapping_add(at));
            // SAFETY: every piece is whole blocks, the rows have all of its inputs, and there is space for
            // the sums and heads of a piece.
            unsafe {
                (few.add_up)(&weights, n_rows, &acts.map(|q| q.add(start)), len, heads, sums);
                (few.lanes)(&blocks, start..start + len, sums, heads, &mut total);
            }
        }
        let total = &total.as_flattened()[..rows.len() * TOGETHER];
        (ty.finish)(self.product, self.tile, rows, first, total);
    }
}

/// The [`LanesFn`] of a type.
///
/// # Safety
/// Blocks, sums and heads are those of the inputs.
unsafe fn lanes<L: Lanes, F: Coded, const T: usize>(
    blocks: &[*const ActBlock; 2],
    inputs: Range<usize>,
    sums: *const i32,
    heads: *const [u8; 16],
    total: &mut [[f32; TOGETHER]; 2],
) {
    L::vectorize(AddLanes::<F, T> { blocks, inputs, sums, heads, total, of: PhantomData });
}

/// Scales the sums of a piece of 16 weight rows and adds them to the outputs' sums.
struct AddLanes<'a, F, const T: usize> {
    /// Blocks of each activation row.
    blocks: &'a [*const ActBlock; 2],
    /// The piece.
    inputs: Range<usize>,
    /// Sums as written by [`AddUp`].
    sums: *const i32,
    heads: *const [u8; 16],
    total: &'a mut [[f32; TOGETHER]; 2],
    of: PhantomData<F>,
}

impl<F: Coded, const T: usize> Kernel for AddLanes<'_, F, T> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let len = self.inputs.len();
        let (mut scales, mut minimums) = ([0.0; UNIT / 16 * TOGETHER], [0.0; UNIT / 16 * TOGETHER]);
        let mut total = [l.splat(0.0); T];
        for t in 0..T {
            total[t] = l.load(&self.total[t]);
        }
        for piece in (0..len).step_by(BLOCK_PIECE) {
            let mut acc = [l.splat(0.0); T];
            for unit in (piece..len.min(piece + BLOCK_PIECE)).step_by(UNIT) {
                // SAFETY: the caller of `lanes` ensures all of it.
                unsafe {
                    let heads = from_raw_parts(self.heads.add(unit / UNIT * F::HEAD), F::HEAD);
                    F::groups(l, heads, &mut scales, &mut minimums);
                    for t in 0..T {
                        let sums = of_rows(l, self.sums.add((unit * T + t * UNIT) * TOGETHER / 16));
                        for group in 0..UNIT.min(len - unit) / F::GROUP {
                            let scale = l.load(array(scales.as_ptr().add(group * TOGETHER)));
                            let offset = match F::ZERO {
                                _ if F::MINIMUMS => l.load(array(minimums.as_ptr().add(group * TOGETHER))),
                                Some(zero) => l.mul(scale, l.splat(-f32::from(zero))),
                                None => scale,
                            };
                            let ints = match F::GROUP {
                                16 => sums[group],
                                _ => l.add_ints(sums[2 * group], sums[2 * group + 1]),
                            };
                            let (blocks, input) =
                                (self.blocks[t], self.inputs.start + unit + group * F::GROUP);
                            let ints = l.add_ints(ints, none::<L, Of<F>>(l, blocks, input));
                            acc[t] = add::<L, Of<F>>(l, acc[t], ints, scale, offset, blocks, input);
                        }
                    }
                }
            }
            for t in 0..T {
                total[t] = l.add(total[t], acc[t]);
            }
        }
        for t in 0..T {
            l.store(&mut self.total[t], total[t]);
        }
    }
}

/// The [`AddUpFn`] of a type.
///
/// # Safety
/// Rows and activations (these padded) have `len` inputs, and there is space for heads and sums.
unsafe fn add_up<L: Lanes, F: Coded, const T: usize>(
    rows: &[*const u8; TOGETHER],
    n: usize,
    q: &[*const i8; 2],
    len: usize,
    heads: *mut [u8; 16],
    sums: *mut i32,
) {
    L::vectorize(AddUp::<F, T> { rows, n, q, len, heads, sums, of: PhantomData });
}

/// Multiplies `len` inputs of `n` weight rows with those of `T` activation rows. Writes 16 sums of 16 inputs
/// each per unit, activation row and weight row, in the layout that [`of_rows`] reads, and the heads of the
/// units, in the layout that [`Coded::groups`] reads.
struct AddUp<'a, F, const T: usize> {
    rows: &'a [*const u8; TOGETHER],
    n: usize,
    q: &'a [*const i8; 2],
    len: usize,
    heads: *mut [u8; 16],
    sums: *mut i32,
    of: PhantomData<F>,
}

/// Maximum bytes of a unit, for types whose rows may end within it.
const LONGEST: usize = UNIT / 32 * 34;

impl<F: Coded, const T: usize> Kernel for AddUp<'_, F, T> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let of_unit = UNIT / F::BLOCK * F::BYTES;
        for r in 0..self.n {
            let mut q = [self.q[0]; T];
            q.copy_from_slice(&self.q[..T]);
            let mut row = self.rows[r];
            // SAFETY: blocks, activations, heads and sums are those of inputs below `len`, or padding.
            unsafe {
                let (mut heads, mut sums) = (self.heads.add(slot(r)), self.sums.add(16 * r));
                for unit in 0..self.len.div_ceil(UNIT) {
                    let left = self.len - unit * UNIT;
                    let mut last;
                    let at = if F::BLOCK < UNIT && left < UNIT {
                        // The last blocks, followed by zeros: the sums of padded activations are not read.
                        last = [0; LONGEST];
                        let n = left / F::BLOCK * F::BYTES;
                        last[..n].copy_from_slice(from_raw_parts(row, n));
                        last.as_ptr()
                    } else {
                        row
                    };
                    ask_for(l, row, of_unit);
                    let steps = [
                        step::<L, F, T, 0>(l, at, q),
                        step::<L, F, T, 1>(l, at, q),
                        step::<L, F, T, 2>(l, at, q),
                        step::<L, F, T, 3>(l, at, q),
                    ];
                    for t in 0..T {
                        let products = [steps[0][t], steps[1][t], steps[2][t], steps[3][t]];
                        l.store_ints(array_mut(sums), l.sums_of_4(&products));
                        sums = sums.add(TOGETHER * 16);
                        q[t] = q[t].wrapping_add(UNIT);
                    }
                    head::<F>(at, UNIT, heads);
                    row = row.wrapping_add(of_unit);
                    heads = heads.wrapping_add(F::HEAD);
                }
            }
        }
    }
}

/// Prefetches memory that is read later, as much as is read now.
#[inline(always)]
fn ask_for<L: Lanes>(l: L, now: *const u8, bytes: usize) {
    for line in 0..bytes.div_ceil(64) {
        l.prefetch(now.wrapping_add(AHEAD + 64 * line));
    }
}

/// The sums of each 16 inputs of a unit, in order of the inputs, with one lane per row.
///
/// # Safety
/// The sums of all 16 rows are valid.
#[inline(always)]
unsafe fn of_rows<L: Lanes>(l: L, sums: *const i32) -> [L::Ints; 16] {
    let mut rows = [l.splat4(&[0; 4]); 16];
    for r in 0..16 {
        // SAFETY: the caller ensures 16 sums of each row.
        rows[r] = l.load_bytes(unsafe { array(sums.add(16 * r).cast()) });
    }
    let transposed = l.transpose(rows);
    let mut sums = [l.splat_int(0); 16];
    for i in 0..16 {
        // Lane `4 k + s` has the inputs from `64 s + 16 k` on.
        sums[4 * (i % 4) + i / 4] = l.as_ints(transposed[i]);
    }
    sums
}

/// The products of step `I` of a unit with each activation row: 64 products, 4 per lane.
///
/// # Safety
/// Blocks and activations of the unit are valid.
#[inline(always)]
unsafe fn step<L: Lanes, F: Coded, const T: usize, const I: usize>(
    l: L,
    row: *const u8,
    q: [*const i8; T],
) -> [L::Ints; T] {
    // SAFETY: the caller ensures the blocks and the activations.
    unsafe {
        let at = row.add(64 * I / F::BLOCK * F::BYTES);
        let block = from_raw_parts(at, F::BYTES);
        let codes = match (F::BLOCK, I) {
            (256, _) => F::codes::<L, I>(l, block, block),
            (128, 1 | 3) => F::codes::<L, 1>(l, block, block),
            (32, _) => F::codes::<L, 0>(l, block, from_raw_parts(at.add(F::BYTES), F::BYTES)),
            _ => F::codes::<L, 0>(l, block, block),
        };
        let mut products = [l.splat_int(0); T];
        for t in 0..T {
            products[t] =
                dot::<L, Of<F>>(l, products[t], codes, l.load_bytes(array(q[t].add(64 * I).cast())));
        }
        products
    }
}
