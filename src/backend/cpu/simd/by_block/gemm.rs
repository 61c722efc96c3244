//! Several activation rows.
#![allow(unsafe_code)]

use std::ops::Range;

use super::super::lanes::Lanes;
use super::super::{BLOCK_PIECE, Scratch};
use super::codes::Coded;
use super::{Acc, Blocks, Group, TOGETHER, dot};

/// A piece of 16 weight rows.
struct Unpacked<'a> {
    /// `[inputs / 4, 16, 4]`.
    columns: &'a [u8],
    /// `[groups, 16]`.
    scales: &'a [f32],
    /// `[groups, 16]`, of types that have some.
    minimums: &'a [f32],
}

impl<F: Coded> Blocks<'_, '_, F> {
    /// Multiplies some activation rows with 16 weight rows, or those that there are.
    ///
    /// # Safety
    /// As [`Kernel::run`](super::super::lanes::Kernel::run).
    #[inline(always)]
    pub(super) unsafe fn gemm<L: Lanes>(&mut self, rows: Range<usize>, first: usize, scratch: &mut Scratch) {
        let cols = self.product.cols;
        let sums = &mut scratch.sums[..rows.len() * TOGETHER];
        let (columns, heads) = scratch.codes.split_at_mut(TOGETHER * BLOCK_PIECE);
        let (scales, minimums) = scratch.floats.split_at_mut(TOGETHER * BLOCK_PIECE / 16);
        for start in (0..cols).step_by(BLOCK_PIECE) {
            let piece = start..cols.min(start + BLOCK_PIECE);
            // SAFETY: as for this function; there is room for a piece.
            unsafe {
                let rows = self.rows_at(first, start);
                let n_blocks = piece.len() / F::BLOCK;
                let bytes = |inputs: usize| inputs / F::BLOCK * F::BYTES;
                let next = match piece.end < cols {
                    true => bytes(piece.len()),
                    false => TOGETHER * self.product.row_bytes - bytes(start),
                };
                self.unpack::<L>(&rows, n_blocks, next, columns);
                for block in 0..n_blocks {
                    for r in 0..TOGETHER {
                        F::head(rows[r].add(block * F::BYTES), heads.as_mut_ptr().add(r * F::HEAD));
                    }
                    let at = block * (F::BLOCK / F::GROUP) * TOGETHER;
                    F::groups::<L>(heads.as_ptr(), scales[at..].as_mut_ptr(), minimums[at..].as_mut_ptr());
                }
            }
            let unpacked = Unpacked { columns, scales, minimums };
            let mut row = rows.start;
            while row < rows.end {
                let sums = &mut sums[(row - rows.start) * TOGETHER..];
                // SAFETY: as for this function; so many rows are left.
                row += unsafe {
                    match (L::FLOAT_BLOCK, rows.end - row) {
                        ((3, 8), 8..) => self.rows::<L, 8>(row, piece.clone(), &unpacked, sums),
                        ((3, 8), 4..) => self.rows::<L, 4>(row, piece.clone(), &unpacked, sums),
                        (_, 2..) => self.rows::<L, 2>(row, piece.clone(), &unpacked, sums),
                        _ => self.rows::<L, 1>(row, piece.clone(), &unpacked, sums),
                    }
                };
            }
        }
        for (row, sums) in rows.zip(sums.chunks_exact(TOGETHER)) {
            self.finish(row, first, sums);
        }
    }

    /// Unpacks a piece of 16 weight rows: `columns` is `[inputs / 4, 16, 4]`. The next piece lies `next`
    /// bytes further on, and the cache is asked for it.
    ///
    /// # Safety
    /// As [`Kernel::run`](super::super::lanes::Kernel::run); the blocks are there.
    #[inline(always)]
    unsafe fn unpack<L: Lanes>(
        &self,
        rows: &[*const u8; TOGETHER],
        n_blocks: usize,
        next: usize,
        columns: &mut [u8],
    ) {
        for at in (0..n_blocks).step_by(if F::BLOCK == 32 { 2 } else { 1 }) {
            let mut blocks = *rows;
            let two = F::BLOCK == 32 && at + 1 < n_blocks;
            let second = if two { F::BYTES } else { 0 };
            // SAFETY: as for this function. A piece is of multiples of 64 inputs, or has room for as many.
            unsafe {
                for r in 0..TOGETHER {
                    blocks[r] = rows[r].add(at * F::BYTES);
                }
                for r in 0..TOGETHER {
                    for line in 0..(if two { 2 } else { 1 } * F::BYTES).div_ceil(64) {
                        L::prefetch_far(blocks[r].wrapping_add(next + 64 * line));
                    }
                }
                let columns = columns[at * F::BLOCK * TOGETHER..].as_mut_ptr();
                step::<L, F, 0>(&blocks, second, columns);
                if F::BLOCK >= 128 {
                    step::<L, F, 1>(&blocks, second, columns);
                }
                if F::BLOCK == 256 {
                    step::<L, F, 2>(&blocks, second, columns);
                    step::<L, F, 3>(&blocks, second, columns);
                }
            }
        }
    }

    /// Adds the products of `T` activation rows with a piece to their sums. Returns `T`.
    ///
    /// # Safety
    /// As [`Kernel::run`](super::super::lanes::Kernel::run); the rows are there, and the sums of each.
    #[inline(always)]
    unsafe fn rows<L: Lanes, const T: usize>(
        &self,
        row: usize,
        piece: Range<usize>,
        unpacked: &Unpacked<'_>,
        sums: &mut [f32],
    ) -> usize {
        let mut acts = [self.acts.row(row); T];
        for t in 1..T {
            acts[t] = self.acts.row(row + t);
        }
        // SAFETY: as for this function; columns, scales and minimums are those of the piece.
        unsafe {
            let mut acc = [Acc::<L>::none(); T];
            for group in 0..piece.len() / F::GROUP {
                let first = piece.start + group * F::GROUP;
                let mut ints = [L::splat_int(0); T];
                for quad in (0..F::GROUP).step_by(4) {
                    let codes = L::load_bytes(unpacked.columns.as_ptr().add((group * F::GROUP + quad) * 16));
                    for t in 0..T {
                        let q = L::splat4(acts[t].0.as_ptr().add(first + quad));
                        ints[t] = dot::<L, F>(ints[t], codes, q);
                    }
                }
                let of = Group::load::<F>(unpacked.scales.as_ptr(), unpacked.minimums.as_ptr(), group);
                for t in 0..T {
                    acc[t].add::<F>(ints[t], &of, acts[t].1.as_ptr(), first);
                }
            }
            for t in 0..T {
                let sums = sums.as_mut_ptr().add(t * TOGETHER);
                let before = if piece.start > 0 { L::load(sums) } else { L::splat(0.0) };
                L::store(sums, L::add(before, acc[t].total()));
            }
        }
        T
    }
}

/// Unpacks 64 weights of each of 16 blocks, and of the block that lies `second` bytes behind.
///
/// # Safety
/// As [`Lanes`]; the blocks are there, and room for `[16 (STEP + 1), 16, 4]` bytes.
#[inline(always)]
unsafe fn step<L: Lanes, F: Coded, const STEP: usize>(
    blocks: &[*const u8; TOGETHER],
    second: usize,
    columns: *mut u8,
) {
    // SAFETY: as for this function.
    unsafe {
        let mut codes = [L::splat4([0; 4].as_ptr()); TOGETHER];
        for r in 0..TOGETHER {
            codes[r] = F::codes::<L, STEP>(blocks[r], blocks[r].add(second));
        }
        let turned = L::turned(codes);
        for i in 0..16 {
            L::store_bytes(columns.add((16 * STEP + i) * 64), turned[i]);
        }
    }
}
