//! Weights of a few bits times activations that are int8 by block.
//!
//! 16 weight rows at a time become unsigned codes, with value = scale x code + offset in each group of 16 or
//! 32, and these are turned so that 64 bytes are 4 inputs of each of the 16 rows. Products of bytes give the
//! exact sums of a group; with `s` the scale of the activations,
//! `sum(w x) = s (scale sum(code q)) + offset (s sum(q))`.
//!
//! A lane is one output: it adds up its groups in their order, each by two fused multiply-adds, and no other
//! row has a part in it. So one row is multiplied as many are, to the bit.
#![allow(unsafe_code)]

pub mod codes;

use std::marker::PhantomData;
use std::ops::Range;

use super::lanes::{Kernel, Lanes};
use super::{BLOCK_PIECE, BlockRows, Product, SUMMED_ROWS, Scratch, Tile};
use codes::Coded;

/// Weight rows that are unpacked together.
pub const TOGETHER: usize = 16;

/// The kernel of one tile.
pub struct Blocks<'a, 'b, F> {
    product: &'a Product<'a>,
    acts: BlockRows<'a>,
    scratch: &'a mut Scratch,
    tile: &'a mut Tile<'b, f32>,
    coded: PhantomData<F>,
}

impl<'a, 'b, F: Coded> Blocks<'a, 'b, F> {
    /// Checks that everything fits.
    ///
    /// # Panics
    /// Where it does not.
    pub fn new(
        product: &'a Product<'a>,
        acts: BlockRows<'a>,
        scratch: &'a mut Scratch,
        tile: &'a mut Tile<'b, f32>,
    ) -> Self {
        const { assert!(BLOCK_PIECE.is_multiple_of(F::BLOCK) && F::BLOCK.is_multiple_of(32)) };
        let (cols, outputs) = (product.cols, tile.cols().len());
        assert!(
            cols.is_multiple_of(F::BLOCK) && cols == acts.cols,
            "{cols} inputs, {} activations",
            acts.cols
        );
        assert_eq!(product.row_bytes, cols / F::BLOCK * F::BYTES, "bytes of {cols} weights");
        assert_eq!(product.weights.len(), outputs * product.row_bytes, "bytes of {outputs} rows");
        assert!(product.bias.is_none_or(|bias| bias.len() == outputs), "a bias for {outputs} outputs");
        assert!(tile.rows().end * BlockRows::stride(cols) <= acts.bytes.len());
        Self { product, acts, scratch, tile, coded: PhantomData }
    }
}

impl<F: Coded> Kernel for Blocks<'_, '_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(mut self) {
        let mut scratch = std::mem::take(self.scratch);
        let outputs = self.tile.cols().len();
        let all = self.tile.rows();
        for row in all.clone().step_by(SUMMED_ROWS) {
            let rows = row..all.end.min(row + SUMMED_ROWS);
            for first in (0..outputs).step_by(TOGETHER) {
                // SAFETY: as for this function; `new` checked every length.
                unsafe { self.strip::<L>(rows.clone(), first, &mut scratch) };
            }
        }
        *self.scratch = scratch;
    }
}

impl<F: Coded> Blocks<'_, '_, F> {
    /// Multiplies some activation rows with 16 weight rows, or those that there are.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn strip<L: Lanes>(&mut self, rows: Range<usize>, first: usize, scratch: &mut Scratch) {
        let cols = self.product.cols;
        let sums = &mut scratch.sums[..rows.len() * TOGETHER];
        let (codes, columns) = scratch.codes.split_at_mut(TOGETHER * BLOCK_PIECE);
        let (scales, offsets) = scratch.floats.split_at_mut(TOGETHER * BLOCK_PIECE / 16);
        for start in (0..cols).step_by(BLOCK_PIECE) {
            let piece = start..cols.min(start + BLOCK_PIECE);
            self.unpack(first, piece.clone(), codes, scales, offsets);
            // SAFETY: as for this function; the codes of a piece lie there, and there is room for as many.
            unsafe { turn::<L>(codes, piece.len(), columns) };
            let unpacked = Unpacked { columns, scales, offsets };
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
            let out = &mut self.tile.row_mut(row)[first..];
            for (i, (out, sum)) in out.iter_mut().zip(sums).enumerate() {
                self.product.finish(out, first + i, *sum);
            }
        }
    }

    /// Unpacks a piece of 16 weight rows: `codes` is `[16, BLOCK_PIECE]`, scales and offsets are
    /// `[groups, 16]`.
    #[inline(always)]
    fn unpack(
        &self,
        first: usize,
        piece: Range<usize>,
        codes: &mut [u8],
        scales: &mut [f32],
        offsets: &mut [f32],
    ) {
        let of_block = F::BLOCK / F::GROUP;
        for (r, codes) in codes.chunks_exact_mut(BLOCK_PIECE).enumerate() {
            // Rows beyond the last one repeat it; what comes out of them is not looked at.
            let row = &self.product.row(first + r)[piece.start / F::BLOCK * F::BYTES..];
            let blocks = row.chunks_exact(F::BYTES).take(piece.len() / F::BLOCK);
            for (at, (block, codes)) in blocks.zip(codes.chunks_exact_mut(F::BLOCK)).enumerate() {
                let mut groups = [[0.0; 2]; 16];
                F::unpack(block, codes, &mut groups);
                for (group, [scale, offset]) in groups.into_iter().enumerate().take(of_block) {
                    scales[(at * of_block + group) * TOGETHER + r] = scale;
                    offsets[(at * of_block + group) * TOGETHER + r] = offset;
                }
            }
        }
    }

    /// Adds the products of `T` activation rows with a piece to their sums. Returns `T`.
    ///
    /// # Safety
    /// As [`Kernel::run`]; the rows are there, and the sums of each.
    #[inline(always)]
    unsafe fn rows<L: Lanes, const T: usize>(
        &self,
        row: usize,
        piece: Range<usize>,
        unpacked: &Unpacked<'_>,
        sums: &mut [f32],
    ) -> usize {
        let acts: [(&[i8], &[[f32; 4]]); T] = std::array::from_fn(|t| self.acts.row(row + t));
        // SAFETY: as for this function; columns, scales and offsets are those of the piece.
        unsafe {
            let mut acc = [L::splat(0.0); T];
            if piece.start > 0 {
                for t in 0..T {
                    acc[t] = L::load(sums.as_ptr().add(t * TOGETHER));
                }
            }
            for group in 0..piece.len() / F::GROUP {
                let first = piece.start + group * F::GROUP;
                let mut ints = [L::splat_int(0); T];
                for quad in (0..F::GROUP).step_by(4) {
                    let codes = L::load_bytes(unpacked.columns.as_ptr().add((group * F::GROUP + quad) * 16));
                    for t in 0..T {
                        let q = L::splat4(acts[t].0.as_ptr().add(first + quad));
                        ints[t] = L::dot(ints[t], codes, q);
                    }
                }
                let scale = L::load(unpacked.scales.as_ptr().add(group * TOGETHER));
                let offset = L::load(unpacked.offsets.as_ptr().add(group * TOGETHER));
                for t in 0..T {
                    let [s, first_half, second_half, whole] = *acts[t].1.as_ptr().add(first / 32);
                    let sum = match (F::GROUP, first % 32) {
                        (32, _) => whole,
                        (_, 0) => first_half,
                        _ => second_half,
                    };
                    acc[t] = L::fma(L::mul(L::to_floats(ints[t]), scale), L::splat(s), acc[t]);
                    acc[t] = L::fma(offset, L::splat(sum), acc[t]);
                }
            }
            for t in 0..T {
                L::store(sums.as_mut_ptr().add(t * TOGETHER), acc[t]);
            }
        }
        T
    }
}

/// A piece of 16 weight rows.
struct Unpacked<'a> {
    /// `[inputs / 4, 16, 4]`.
    columns: &'a [u8],
    /// `[groups, 16]`.
    scales: &'a [f32],
    /// `[groups, 16]`.
    offsets: &'a [f32],
}

/// Turns codes of `[16, BLOCK_PIECE]`, of which `len` columns count, to `[len / 4, 16, 4]`.
///
/// # Safety
/// As [`Lanes`]; `len` is a multiple of 32, and both hold as much.
#[inline(always)]
unsafe fn turn<L: Lanes>(codes: &[u8], len: usize, columns: &mut [u8]) {
    for at in (0..len).step_by(64) {
        let whole = len - at >= 64;
        let rows: [*const u8; 16] = std::array::from_fn(|r| codes[r * BLOCK_PIECE + at..].as_ptr());
        // SAFETY: as for this function.
        unsafe {
            let turned = L::columns(&rows, whole);
            for i in 0..if whole { 16 } else { 8 } {
                L::store_bytes(columns.as_mut_ptr().add((at / 4 + i) * 64), turned[i]);
            }
        }
    }
}

/// Rounds a row: `q` is `[x.len()]`, and each of `blocks` gets the scale of 32 inputs, the scaled sums of the
/// first and last 16 of them, and that of all. See
/// [`ActQuant::I8PerBlock`](crate::program::ActQuant::I8PerBlock).
#[inline(always)]
pub fn round(x: &[f32], q: &mut [i8], blocks: &mut [[f32; 4]]) {
    use crate::program::ActQuant;
    let parts = x.chunks(ActQuant::BLOCK).zip(q.chunks_mut(ActQuant::BLOCK));
    for ((x, q), block) in parts.zip(blocks) {
        let absmax = x.iter().fold(0.0_f32, |max, x| if x.abs() > max { x.abs() } else { max });
        let finite = x.iter().all(|x| x.is_finite());
        let (scale, inverse) = match absmax {
            _ if !finite => (f32::NAN, 0.0),
            ..ActQuant::NOTHING => (0.0, 0.0),
            _ => (absmax / 127.0, 127.0 / absmax),
        };
        let mut sums = [0; 2];
        for (i, (x, q)) in x.iter().zip(q).enumerate() {
            *q = (x * inverse).round_ties_even() as i8;
            sums[i / 16] += i32::from(*q);
        }
        *block = [scale, scale * sums[0] as f32, scale * sums[1] as f32, scale * (sums[0] + sums[1]) as f32];
    }
}
