//! The same products in less code, for a WebAssembly module that is downloaded. Per type there is only the
//! code that decodes it: on the way for one activation row, and beforehand for several, whose product all
//! types share. The sums have the same order, so the bits are the same.
#![allow(unsafe_code)]

use std::slice::from_raw_parts;

use super::{Form, TailFn, block};
use crate::lanes::{Lanes, array, array_mut};
use crate::{F32Rows, FLOAT_PIECE, FLOAT_ROWS, FLOAT_STRIP, Product, Scratch, Tile};

/// Sizes and functions of a type.
pub struct Type<L> {
    block: usize,
    bytes: usize,
    decode: unsafe fn(l: L, blocks: &[u8], n_blocks: usize, floats: *mut f32),
    dot: unsafe fn(l: L, blocks: &[u8], n_blocks: usize, acts: *const f32) -> f32,
    tail: TailFn,
}

/// Weight rows and activation rows that are multiplied together.
const R: usize = 2;
const T: usize = 2;

impl<L: Lanes> Type<L> {
    /// The type with the format `F`.
    pub const fn of<F: Form>() -> Self {
        Self {
            block: F::BLOCK,
            bytes: F::BYTES,
            decode: decode::<L, F>,
            dot: dot::<L, F>,
            tail: super::tail::<F>,
        }
    }

    /// Multiplies a tile.
    ///
    /// # Panics
    /// If the arguments do not match.
    #[inline(never)]
    pub fn multiply(
        &self,
        l: L,
        product: &Product<'_>,
        acts: F32Rows<'_>,
        scratch: &mut Scratch,
        tile: &mut Tile<'_, f32>,
    ) {
        let (rows, cols, outputs) = (tile.rows(), product.cols, tile.cols().len());
        assert!(self.block == super::SINGLE || cols.is_multiple_of(self.block), "{cols} inputs");
        product.check(
            cols / self.block * self.bytes + cols % self.block * self.bytes / self.block,
            acts,
            tile,
        );
        if rows.len() == 1 {
            let acts = acts.row(rows.start);
            for output in 0..outputs {
                let weights = product.row(output);
                // SAFETY: a row has as many blocks, and the activations have their inputs.
                let sum = unsafe { (self.dot)(l, weights, cols / self.block, acts.as_ptr()) };
                let value = sum + (self.tail)(weights, acts);
                product.finish(&mut tile.row_mut(rows.start)[output], output, value);
            }
            return;
        }
        let whole = cols / 16 * 16;
        let (floats, sums) = (&mut scratch.floats[..FLOAT_STRIP * FLOAT_PIECE], &mut scratch.sums);
        for first in rows.clone().step_by(FLOAT_ROWS) {
            let rows = first..rows.end.min(first + FLOAT_ROWS);
            for strip in (0..outputs).step_by(FLOAT_STRIP) {
                let n = FLOAT_STRIP.min(outputs - strip);
                sums[..rows.len().next_multiple_of(T) * FLOAT_STRIP * 16].fill(0.0);
                for start in (0..whole).step_by(FLOAT_PIECE) {
                    let piece = start..whole.min(start + FLOAT_PIECE);
                    for r in 0..FLOAT_STRIP {
                        // Rows after the last one repeat it; their results are ignored.
                        let row = product.row(strip + r.min(n - 1));
                        let blocks = &row[start / self.block * self.bytes..];
                        let floats = floats[r * FLOAT_PIECE..].as_mut_ptr();
                        // SAFETY: blocks are within rows, and a piece has space for their weights.
                        unsafe { (self.decode)(l, blocks, piece.len() / self.block, floats) };
                    }
                    for (row, sums) in
                        rows.clone().step_by(T).zip(sums.chunks_exact_mut(T * FLOAT_STRIP * 16))
                    {
                        let act = |t: usize| &acts.row((row + t).min(rows.end - 1))[piece.clone()];
                        let is_last = row + 1 == rows.end;
                        for (r, sums) in (0..FLOAT_STRIP).step_by(R).zip(sums.chunks_exact_mut(T * R * 16)) {
                            let weights =
                                std::array::from_fn(|i| &floats[(r + i) * FLOAT_PIECE..][..piece.len()]);
                            let (nothing, sums) = (std::ptr::null(), sums.as_mut_ptr());
                            // SAFETY: all rows have the length of the piece, and `sums` that of the block.
                            unsafe {
                                if is_last {
                                    block::<L, R, 1>(l, weights, [act(0)], true, nothing, sums);
                                } else {
                                    block::<L, R, T>(l, weights, [act(0), act(1)], true, nothing, sums);
                                }
                            }
                        }
                    }
                }
                for (at, row) in rows.clone().enumerate() {
                    for r in 0..n {
                        let place = ((at / T * FLOAT_STRIP / R + r / R) * T + at % T) * R + r % R;
                        let lanes = &sums[16 * place..][..16];
                        // SAFETY: `lanes` has 16 floats.
                        let sum = l.sum(l.load(unsafe { array(lanes.as_ptr()) }));
                        let tail = (self.tail)(product.row(strip + r), acts.row(row));
                        product.finish(&mut tile.row_mut(row)[strip + r], strip + r, sum + tail);
                    }
                }
            }
        }
    }
}

/// Decodes `n_blocks` blocks.
///
/// # Safety
/// The blocks are valid, and `floats` has space for their weights.
unsafe fn decode<L: Lanes, F: Form>(l: L, blocks: &[u8], n_blocks: usize, floats: *mut f32) {
    for block in 0..n_blocks {
        // SAFETY: the caller ensures the blocks, and space for each.
        unsafe {
            F::decode(
                l,
                from_raw_parts(blocks.as_ptr().add(block * F::BYTES), F::BYTES),
                #[inline(always)]
                |i, weights| l.store(array_mut(floats.add(block * F::BLOCK + i)), weights),
            );
        }
    }
}

/// The product of `n_blocks` blocks and as many activations.
///
/// # Safety
/// Blocks and activations are valid.
unsafe fn dot<L: Lanes, F: Form>(l: L, blocks: &[u8], n_blocks: usize, acts: *const f32) -> f32 {
    // SAFETY: the caller ensures the blocks, and activations for each.
    unsafe {
        let mut acc = l.splat(0.0);
        for block in 0..n_blocks {
            F::decode(
                l,
                from_raw_parts(blocks.as_ptr().add(block * F::BYTES), F::BYTES),
                #[inline(always)]
                |i, weights| acc = l.fma(weights, l.load(array(acts.add(block * F::BLOCK + i))), acc),
            );
        }
        l.sum(acc)
    }
}
