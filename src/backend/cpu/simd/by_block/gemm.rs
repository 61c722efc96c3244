//! Products with several activation rows.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;
use std::slice::from_raw_parts;

use super::super::lanes::{Kernel, Lanes, array, array_mut, slot};
use super::super::{BLOCK_PIECE, BlockRows, UNIT};
use super::codes::Coded;
use super::{Groups, SCALES, STRIPS, TOGETHER, Work, add, dot, head, none};

/// A piece of some strips of 16 weight rows.
#[derive(Clone, Copy)]
pub(super) struct Unpacked<'a> {
    /// `[inputs / 4, strips, 16, 4]`.
    columns: &'a [u8],
    /// `[strips, groups, 16]`, where strips are [`SCALES`] apart.
    scales: &'a [f32],
    /// Likewise, for types with offsets.
    offsets: &'a [f32],
}

/// Function that multiplies activation rows with an unpacked piece: see [`Rows`].
pub(super) type RowsFn = unsafe fn(
    acts: BlockRows<'_>,
    rows: Range<usize>,
    piece: Range<usize>,
    unpacked: &Unpacked<'_>,
    sums: &mut [f32],
);

/// The [`RowsFn`] for groups of this size, with or without signed codes, and `S` strips.
pub(super) const fn rows<L: Lanes, const S: usize>(group: usize, is_signed: bool) -> RowsFn {
    match (group, is_signed) {
        (16, false) => multiply::<L, 16, false, S>,
        (16, true) => multiply::<L, 16, true, S>,
        (_, false) => multiply::<L, 32, false, S>,
        (_, true) => multiply::<L, 32, true, S>,
    }
}

/// Function that unpacks a piece of 16 weight rows: see [`Unpack`].
pub(super) type UnpackFn = unsafe fn(
    rows: &[*const u8; TOGETHER],
    inputs: usize,
    next: usize,
    strips: usize,
    columns: *mut u8,
    heads: *mut [u8; 16],
);

impl Work<'_, '_> {
    /// Multiplies some activation rows with up to `strips` strips of 16 weight rows.
    pub(super) fn gemm(&mut self, rows: Range<usize>, first: usize, strips: usize) {
        let (ty, cols) = (self.ty, self.product.cols);
        let (columns, heads) = self.scratch.codes.split_at_mut(STRIPS * TOGETHER * BLOCK_PIECE);
        let heads = heads.as_mut_ptr().cast::<[u8; 16]>();
        let (scales, offsets) = self.scratch.floats.split_at_mut(STRIPS * SCALES);
        let sums = &mut self.scratch.sums[..rows.len() * strips * TOGETHER];
        let mut weights = [[self.product.weights.as_ptr(); TOGETHER]; STRIPS];
        for strip in 0..strips {
            weights[strip] = self.product.rows(first + strip * TOGETHER);
        }
        for start in (0..cols).step_by(BLOCK_PIECE) {
            let piece = start..cols.min(start + BLOCK_PIECE);
            let at = ty.bytes_of(start);
            let next = match piece.end < cols {
                true => ty.bytes_of(piece.len()),
                false => strips * TOGETHER * self.product.row_bytes - at,
            };
            for strip in 0..strips {
                let rows = weights[strip].map(|row| row.wrapping_add(at));
                let (columns, scales) = (&mut columns[strip * 64..], &mut scales[strip * SCALES..][..SCALES]);
                let offsets = offsets[strip * SCALES..][..SCALES].as_mut_ptr();
                // SAFETY: the rows have the piece, and there is space for it and for its heads.
                unsafe {
                    (ty.unpack)(&rows, piece.len(), next, strips, columns.as_mut_ptr(), heads);
                    (ty.scales)(heads, piece.len().div_ceil(UNIT), scales.as_mut_ptr(), offsets);
                }
            }
            let unpacked = Unpacked { columns, scales, offsets };
            let multiply = ty.many[usize::from(strips > 1)];
            // SAFETY: the rows exist, and the piece is unpacked.
            unsafe { multiply(self.acts, rows.clone(), piece, &unpacked, sums) };
        }
        (ty.finish)(self.product, self.tile, rows, first, sums);
    }
}

/// The [`RowsFn`] for a kind of groups.
///
/// # Safety
/// The rows exist and have sums; `S` strips of the piece are unpacked.
unsafe fn multiply<L: Lanes, const GROUP: usize, const SIGNED: bool, const S: usize>(
    acts: BlockRows<'_>,
    rows: Range<usize>,
    piece: Range<usize>,
    unpacked: &Unpacked<'_>,
    sums: &mut [f32],
) {
    L::vectorize(Rows::<GROUP, SIGNED, S> { acts, rows, piece, unpacked: *unpacked, sums });
}

/// Adds the products of activation rows with a piece to their sums, `[rows, S, 16]`.
struct Rows<'a, const GROUP: usize, const SIGNED: bool, const S: usize> {
    acts: BlockRows<'a>,
    rows: Range<usize>,
    piece: Range<usize>,
    unpacked: Unpacked<'a>,
    sums: &'a mut [f32],
}

impl<const GROUP: usize, const SIGNED: bool, const S: usize> Kernel for Rows<'_, GROUP, SIGNED, S> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let mut row = self.rows.start;
        while row < self.rows.end {
            // SAFETY: at least as many rows remain.
            row += unsafe {
                match (L::FLOAT_BLOCK, self.rows.end - row) {
                    ((3, 8), 8..) if S == 1 => self.some::<L, 8>(l, row),
                    ((3, 8), 4..) => self.some::<L, 4>(l, row),
                    (_, 2..) => self.some::<L, 2>(l, row),
                    _ => self.some::<L, 1>(l, row),
                }
            };
        }
    }
}

impl<const GROUP: usize, const SIGNED: bool, const S: usize> Rows<'_, GROUP, SIGNED, S> {
    /// Multiplies `T` activation rows. Returns `T`.
    ///
    /// # Safety
    /// The rows exist.
    #[inline(always)]
    unsafe fn some<L: Lanes, const T: usize>(&mut self, l: L, row: usize) -> usize {
        let (piece, unpacked) = (self.piece.clone(), &self.unpacked);
        let sums = &mut self.sums[(row - self.rows.start) * S * TOGETHER..][..T * S * TOGETHER];
        let mut acts = [self.acts.row(row); T];
        for t in 1..T {
            acts[t] = self.acts.row(row + t);
        }
        // SAFETY: columns, scales and offsets are those of the piece, and the rows have its inputs.
        unsafe {
            let mut acc = [[l.splat(0.0); S]; T];
            for group in 0..piece.len() / GROUP {
                let first = piece.start + group * GROUP;
                let mut ints = [[l.splat_int(0); S]; T];
                for t in 0..T {
                    ints[t] = [none::<L, Groups<GROUP, SIGNED>>(l, acts[t].1.as_ptr(), first); S];
                }
                for quad in (0..GROUP).step_by(4) {
                    let mut codes = [l.splat4(&[0; 4]); S];
                    for s in 0..S {
                        let at = ((group * GROUP + quad) * S + 4 * s) * 16;
                        codes[s] = l.load_bytes(array(unpacked.columns.as_ptr().add(at)));
                    }
                    for t in 0..T {
                        let q = l.splat4(array(acts[t].0.as_ptr().add(first + quad)));
                        for s in 0..S {
                            ints[t][s] = dot::<L, Groups<GROUP, SIGNED>>(l, ints[t][s], codes[s], q);
                        }
                    }
                }
                for s in 0..S {
                    let at = s * SCALES + group * TOGETHER;
                    let scale = l.load(array(unpacked.scales.as_ptr().add(at)));
                    let offset =
                        if SIGNED { scale } else { l.load(array(unpacked.offsets.as_ptr().add(at))) };
                    for t in 0..T {
                        let (blocks, ints) = (acts[t].1.as_ptr(), ints[t][s]);
                        acc[t][s] =
                            add::<L, Groups<GROUP, SIGNED>>(l, acc[t][s], ints, scale, offset, blocks, first);
                    }
                }
            }
            for t in 0..T {
                for s in 0..S {
                    let sums = sums.as_mut_ptr().add((t * S + s) * TOGETHER);
                    let before = if piece.start > 0 { l.load(array(sums)) } else { l.splat(0.0) };
                    l.store(array_mut(sums), l.add(before, acc[t][s]));
                }
            }
        }
        T
    }
}

/// The [`UnpackFn`] of a type.
///
/// # Safety
/// The rows have the inputs, at most a piece, and there is space for the columns and heads.
pub(super) unsafe fn unpack<L: Lanes, F: Coded>(
    rows: &[*const u8; TOGETHER],
    inputs: usize,
    next: usize,
    strips: usize,
    columns: *mut u8,
    heads: *mut [u8; 16],
) {
    L::vectorize(Unpack::<F> { rows, inputs, next, strips, columns, heads, of: PhantomData });
}

/// Unpacks `inputs` inputs of 16 weight rows to `columns`, `[inputs / 4, strips, 16, 4]`, and copies the
/// heads of their units. Prefetches the next piece, which is `next` bytes further on.
struct Unpack<'a, F> {
    rows: &'a [*const u8; TOGETHER],
    inputs: usize,
    next: usize,
    strips: usize,
    columns: *mut u8,
    heads: *mut [u8; 16],
    of: PhantomData<F>,
}

impl<F: Coded> Kernel for Unpack<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let n_blocks = self.inputs / F::BLOCK;
        for at in (0..n_blocks).step_by(if F::BLOCK == 32 { 2 } else { 1 }) {
            let mut blocks = *self.rows;
            let two = F::BLOCK == 32 && at + 1 < n_blocks;
            let second = if two { F::BYTES } else { 0 };
            // SAFETY: the caller of `unpack` ensures the blocks. A piece is a multiple of 64 inputs, or has
            // space for the next multiple.
            unsafe {
                for r in 0..TOGETHER {
                    blocks[r] = self.rows[r].add(at * F::BYTES);
                }
                for r in 0..TOGETHER {
                    for line in 0..(if two { 2 } else { 1 } * F::BYTES).div_ceil(64) {
                        l.prefetch_far(blocks[r].wrapping_add(self.next + 64 * line));
                    }
                }
                let columns = self.columns.add(at * F::BLOCK * self.strips * TOGETHER);
                step::<L, F, 0>(l, &blocks, second, self.strips, columns);
                if F::BLOCK >= 128 {
                    step::<L, F, 1>(l, &blocks, second, self.strips, columns);
                }
                if F::BLOCK == 256 {
                    step::<L, F, 2>(l, &blocks, second, self.strips, columns);
                    step::<L, F, 3>(l, &blocks, second, self.strips, columns);
                }
            }
        }
        for unit in (0..self.inputs).step_by(UNIT) {
            for r in 0..TOGETHER {
                // SAFETY: the caller of `unpack` ensures the blocks and the space.
                unsafe {
                    let row = self.rows[r].add(unit / F::BLOCK * F::BYTES);
                    let heads = self.heads.add(unit / UNIT * F::HEAD + slot(r));
                    head::<F>(row, (self.inputs - unit).min(UNIT), heads);
                }
            }
        }
    }
}

/// Unpacks 64 weights of each of 16 blocks, or of each block and the one that is `second` bytes further on.
///
/// # Safety
/// The blocks are valid, and there is space for `[16 (STEP + 1), strips, 16, 4]` bytes.
#[inline(always)]
unsafe fn step<L: Lanes, F: Coded, const STEP: usize>(
    l: L,
    blocks: &[*const u8; TOGETHER],
    second: usize,
    strips: usize,
    columns: *mut u8,
) {
    // SAFETY: the caller ensures the blocks and the space.
    unsafe {
        let mut codes = [l.splat4(&[0; 4]); TOGETHER];
        for r in 0..TOGETHER {
            let next = from_raw_parts(blocks[r].add(second), F::BYTES);
            codes[r] = F::codes::<L, STEP>(l, from_raw_parts(blocks[r], F::BYTES), next);
        }
        let transposed = l.transpose(codes);
        for i in 0..16 {
            l.store_bytes(array_mut(columns.add((16 * STEP + i) * strips * 64)), transposed[i]);
        }
    }
}
