//! Several activation rows.
#![allow(unsafe_code)]

use std::ops::Range;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::super::lanes::{Lanes, array, array_mut, slot};
use super::super::{BLOCK_PIECE, Scratch, UNIT};
use super::codes::Coded;
use super::{Blocks, Group, STRIPS, TOGETHER, add, dot, head, none};

/// A piece of `S` strips of 16 weight rows.
struct Unpacked<'a, const S: usize> {
    /// `[inputs / 4, S, 16, 4]`.
    columns: &'a [u8],
    /// `[groups, 16]` of each strip.
    scales: [&'a [f32]; S],
    /// `[groups, 16]` of each strip, of types that have some.
    minimums: [&'a [f32]; S],
}

impl<F: Coded> Blocks<'_, '_, F> {
    /// Multiplies some activation rows with `S` strips of 16 weight rows, or those that there are.
    #[inline(always)]
    pub(super) fn gemm<L: Lanes, const S: usize>(
        &mut self,
        l: L,
        rows: Range<usize>,
        first: usize,
        scratch: &mut Scratch,
    ) {
        /// Scales of a strip.
        const SCALES: usize = TOGETHER * BLOCK_PIECE / 16;
        let cols = self.product.cols;
        let sums = &mut scratch.sums[..rows.len() * S * TOGETHER];
        let (columns, heads) = scratch.codes.split_at_mut(STRIPS * TOGETHER * BLOCK_PIECE);
        let (scales, minimums) = scratch.floats.split_at_mut(STRIPS * SCALES);
        for start in (0..cols).step_by(BLOCK_PIECE) {
            let piece = start..cols.min(start + BLOCK_PIECE);
            let bytes = |inputs: usize| inputs / F::BLOCK * F::BYTES;
            let next = match piece.end < cols {
                true => bytes(piece.len()),
                false => S * TOGETHER * self.product.row_bytes - bytes(start),
            };
            for strip in 0..S {
                let rows = self.rows_at(first + strip * TOGETHER, start);
                // SAFETY: the rows have the piece, and there is room for it and for the head of a unit.
                unsafe {
                    let columns = columns[strip * 64..].as_mut_ptr();
                    unpack::<L, F, S>(l, &rows, piece.len() / F::BLOCK, next, columns);
                    let heads = heads.as_mut_ptr().cast::<[u8; 16]>();
                    for unit in (0..piece.len()).step_by(UNIT) {
                        for r in 0..TOGETHER {
                            let left = (piece.len() - unit).min(UNIT);
                            head::<F>(rows[r].add(bytes(unit)), left, heads.add(slot(r)));
                        }
                        let (at, n) =
                            (strip * SCALES + unit / F::GROUP * TOGETHER, UNIT / F::GROUP * TOGETHER);
                        F::groups(
                            l,
                            from_raw_parts(heads, F::HEAD),
                            from_raw_parts_mut(scales[at..].as_mut_ptr(), n),
                            from_raw_parts_mut(minimums[at..].as_mut_ptr(), n),
                        );
                    }
                }
            }
            let (mut strips, mut lowest) = ([&scales[..0]; S], [&scales[..0]; S]);
            for strip in 0..S {
                strips[strip] = &scales[strip * SCALES..][..SCALES];
                lowest[strip] = &minimums[strip * SCALES..][..SCALES];
            }
            let unpacked = Unpacked { columns, scales: strips, minimums: lowest };
            let mut row = rows.start;
            while row < rows.end {
                let sums = &mut sums[(row - rows.start) * S * TOGETHER..];
                // SAFETY: so many rows are left, and the piece is unpacked.
                row += unsafe {
                    match (L::FLOAT_BLOCK, rows.end - row) {
                        ((3, 8), 8..) if S == 1 => {
                            self.rows::<L, S, 8>(l, row, piece.clone(), &unpacked, sums)
                        }
                        ((3, 8), 4..) => self.rows::<L, S, 4>(l, row, piece.clone(), &unpacked, sums),
                        (_, 2..) => self.rows::<L, S, 2>(l, row, piece.clone(), &unpacked, sums),
                        _ => self.rows::<L, S, 1>(l, row, piece.clone(), &unpacked, sums),
                    }
                };
            }
        }
        for (row, sums) in rows.zip(sums.chunks_exact(S * TOGETHER)) {
            self.finish(l, row, first, sums);
        }
    }

    /// Adds the products of `T` activation rows with a piece to their sums. Returns `T`.
    ///
    /// # Safety
    /// The rows are there, and the sums of each; the piece is unpacked.
    #[inline(always)]
    unsafe fn rows<L: Lanes, const S: usize, const T: usize>(
        &self,
        l: L,
        row: usize,
        piece: Range<usize>,
        unpacked: &Unpacked<'_, S>,
        sums: &mut [f32],
    ) -> usize {
        let mut acts = [self.acts.row(row); T];
        for t in 1..T {
            acts[t] = self.acts.row(row + t);
        }
        // SAFETY: columns, scales and minimums are those of the piece, and the rows have its inputs.
        unsafe {
            let mut acc = [[l.splat(0.0); S]; T];
            for group in 0..piece.len() / F::GROUP {
                let first = piece.start + group * F::GROUP;
                let mut ints = [[l.splat_int(0); S]; T];
                for t in 0..T {
                    ints[t] = [none::<L, F>(l, acts[t].1.as_ptr(), first); S];
                }
                for quad in (0..F::GROUP).step_by(4) {
                    let mut codes = [l.splat4(&[0; 4]); S];
                    for s in 0..S {
                        let at = ((group * F::GROUP + quad) * S + 4 * s) * 16;
                        codes[s] = l.load_bytes(array(unpacked.columns.as_ptr().add(at)));
                    }
                    for t in 0..T {
                        let q = l.splat4(array(acts[t].0.as_ptr().add(first + quad)));
                        for s in 0..S {
                            ints[t][s] = dot::<L, F>(l, ints[t][s], codes[s], q);
                        }
                    }
                }
                for s in 0..S {
                    let (scales, minimums) = (unpacked.scales[s].as_ptr(), unpacked.minimums[s].as_ptr());
                    let of = Group::load::<F>(l, scales, minimums, group);
                    for t in 0..T {
                        acc[t][s] = add::<L, F>(l, acc[t][s], ints[t][s], &of, acts[t].1.as_ptr(), first);
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

/// Unpacks a piece of 16 weight rows: `columns` is `[inputs / 4, S, 16, 4]`. The next piece lies `next` bytes
/// further on, and the cache is asked for it.
///
/// # Safety
/// The blocks are there, and no more than a piece has.
#[inline(always)]
unsafe fn unpack<L: Lanes, F: Coded, const S: usize>(
    l: L,
    rows: &[*const u8; TOGETHER],
    n_blocks: usize,
    next: usize,
    columns: *mut u8,
) {
    for at in (0..n_blocks).step_by(if F::BLOCK == 32 { 2 } else { 1 }) {
        let mut blocks = *rows;
        let two = F::BLOCK == 32 && at + 1 < n_blocks;
        let second = if two { F::BYTES } else { 0 };
        // SAFETY: the caller has the blocks. A piece is of multiples of 64 inputs, or has room for as many.
        unsafe {
            for r in 0..TOGETHER {
                blocks[r] = rows[r].add(at * F::BYTES);
            }
            for r in 0..TOGETHER {
                for line in 0..(if two { 2 } else { 1 } * F::BYTES).div_ceil(64) {
                    l.prefetch_far(blocks[r].wrapping_add(next + 64 * line));
                }
            }
            let columns = columns.add(at * F::BLOCK * S * TOGETHER);
            step::<L, F, S, 0>(l, &blocks, second, columns);
            if F::BLOCK >= 128 {
                step::<L, F, S, 1>(l, &blocks, second, columns);
            }
            if F::BLOCK == 256 {
                step::<L, F, S, 2>(l, &blocks, second, columns);
                step::<L, F, S, 3>(l, &blocks, second, columns);
            }
        }
    }
}

/// Unpacks 64 weights of each of 16 blocks, and of the block that lies `second` bytes behind.
///
/// # Safety
/// The blocks are there, and room for `[16 (STEP + 1), S, 16, 4]` bytes.
#[inline(always)]
unsafe fn step<L: Lanes, F: Coded, const S: usize, const STEP: usize>(
    l: L,
    blocks: &[*const u8; TOGETHER],
    second: usize,
    columns: *mut u8,
) {
    // SAFETY: the caller has the blocks, and the room.
    unsafe {
        let mut codes = [l.splat4(&[0; 4]); TOGETHER];
        for r in 0..TOGETHER {
            let next = from_raw_parts(blocks[r].add(second), F::BYTES);
            codes[r] = F::codes::<L, STEP>(l, from_raw_parts(blocks[r], F::BYTES), next);
        }
        let turned = l.turned(codes);
        for i in 0..16 {
            l.store_bytes(array_mut(columns.add((16 * STEP + i) * S * 64)), turned[i]);
        }
    }
}
