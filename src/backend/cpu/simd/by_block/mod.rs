//! Weights of a few bits times activations that are int8 by block.
//!
//! 16 weight rows at a time become codes, with value = scale x code + offset in each group of 16 or 32.
//! Products of bytes give the exact sums of a group; with `s` the scale of the activations, `sum(w x) = s
//! (scale sum(code q)) + offset (s sum(q))`.
//!
//! A lane is one output: it adds up the groups of each [`BLOCK_PIECE`] inputs in their order, and then
//! these, and no other row has a part in it. What comes before are exact sums of integers, in whichever
//! order. So one or two activation rows are multiplied as many are, to the bit, and yet in another way:
//! `gemv.rs` multiplies codes as they come out of the blocks and adds up lanes, while `gemm.rs` turns them
//! so that 64 bytes are 4 inputs of each of the 16 rows, and keeps a piece of them in the cache while all
//! activation rows pass over it.
#![allow(unsafe_code)]

pub mod codes;
pub mod few_bits;
mod gemm;
mod gemv;
pub mod look_up;

use std::marker::PhantomData;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use super::lanes::{Kernel, Lanes, array};
use super::{ActBlock, BLOCK_PIECE, BlockRows, Product, SUMMED_ROWS, Scratch, Tile};
use codes::Coded;

/// Multiplies weight rows with activation rows that are int8 by block, and finishes the tile.
pub type BlockFn = fn(&Product<'_>, BlockRows<'_>, &mut Scratch, &mut Tile<'_, f32>);

/// Weight rows that are unpacked together.
pub const TOGETHER: usize = 16;

/// Groups of as many rows that several activation rows are multiplied with at a time, at most.
pub const STRIPS: usize = 3;

/// From so many activation rows on they are multiplied with [`STRIPS`]. Fewer wait for memory, which gives 48
/// rows side by side slower than 16: two rows of Q4_K took 1.7 times as long on an EPYC (Zen 5).
const MANY: usize = 16;

/// Bytes of a thread: the columns of a piece of all strips and the heads of a unit, or the heads of 16 rows.
pub const CODES: usize = STRIPS * TOGETHER * BLOCK_PIECE + TOGETHER * 32;

/// The product over one instruction set.
pub fn multiply<L: Lanes, F: Coded>(
    product: &Product<'_>,
    acts: BlockRows<'_>,
    scratch: &mut Scratch,
    tile: &mut Tile<'_, f32>,
) {
    L::vectorize(Blocks::<F>::new(product, acts, scratch, tile));
}

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
    fn run<L: Lanes>(mut self, l: L) {
        let mut scratch = std::mem::take(self.scratch);
        let outputs = self.tile.cols().len();
        let all = self.tile.rows();
        for row in all.clone().step_by(SUMMED_ROWS) {
            let rows = row..all.end.min(row + SUMMED_ROWS);
            let mut first = 0;
            while first < outputs {
                let left = (outputs - first).div_ceil(TOGETHER);
                let mut strips = 1;
                match (rows.len(), L::FLOAT_BLOCK) {
                    (1, _) => self.gemv::<L, 1>(l, row, first, &mut scratch),
                    // Three from memory were as fast in either way on an EPYC (Zen 5), two 1.2 to 1.5 times.
                    (2, (3, 8)) => self.gemv::<L, 2>(l, row, first, &mut scratch),
                    (MANY.., (3, 8)) if left >= STRIPS => {
                        strips = STRIPS;
                        self.gemm::<L, STRIPS>(l, rows.clone(), first, &mut scratch);
                    }
                    _ => self.gemm::<L, 1>(l, rows.clone(), first, &mut scratch),
                }
                first += strips * TOGETHER;
            }
        }
        *self.scratch = scratch;
    }
}

impl<F: Coded> Blocks<'_, '_, F> {
    /// Where 16 weight rows have input `at`, which begins a block. Rows beyond the last one repeat it; what
    /// comes out of them is not looked at.
    #[inline(always)]
    fn rows_at(&self, first: usize, at: usize) -> [*const u8; TOGETHER] {
        let mut rows = [self.product.weights.as_ptr(); TOGETHER];
        for r in 0..TOGETHER {
            rows[r] = self.product.row(first + r)[at / F::BLOCK * F::BYTES..].as_ptr();
        }
        rows
    }

    /// Finishes the outputs of one activation row, of which there may be fewer than sums.
    #[inline(always)]
    fn finish<L: Lanes>(&mut self, l: L, row: usize, first: usize, sums: &[f32]) {
        let outputs = &mut self.tile.row_mut(row)[first..];
        for (i, sums) in sums.as_chunks::<TOGETHER>().0.iter().enumerate() {
            let at = i * TOGETHER;
            match outputs.get_mut(at..).and_then(|outputs| outputs.first_chunk_mut()) {
                Some(outputs) => self.product.finish_16(l, outputs, first + at, l.load(sums)),
                None => {
                    for (j, (output, sum)) in outputs.iter_mut().skip(at).zip(sums).enumerate() {
                        self.product.finish(output, first + at + j, *sum);
                    }
                }
            }
        }
    }
}

/// Sums of products of codes before there are any, of the group of inputs from `input` on: what the zeros of
/// signed codes take away.
///
/// # Safety
/// The block is there.
#[inline(always)]
unsafe fn none<L: Lanes, F: Coded>(l: L, blocks: *const ActBlock, input: usize) -> L::Ints {
    if F::ZERO.is_some() || L::ZERO == 0 {
        return l.splat_int(0);
    }
    const { assert!(L::ZERO == 0 || L::ZERO == 128) };
    // SAFETY: the caller has the block.
    l.splat_int(unsafe { (*blocks.add(input / 32)).zeros[which::<F>(input)] })
}

/// Adds a group to the sums of 16 outputs. `input` is its first one, `blocks` are those of the activation
/// row.
///
/// # Safety
/// The block is there.
#[inline(always)]
unsafe fn add<L: Lanes, F: Coded>(
    l: L,
    sums: L::Floats,
    ints: L::Ints,
    of: &Group<L>,
    blocks: *const ActBlock,
    input: usize,
) -> L::Floats {
    // SAFETY: the caller has the block.
    let block = unsafe { &*blocks.add(input / 32) };
    let sums = l.fma(l.mul(l.to_floats(ints), of.scale), l.splat(block.scale), sums);
    if has_offset::<F>() { l.fma(of.offset, l.splat(block.sums[which::<F>(input)]), sums) } else { sums }
}

/// Which of the sums of a block belongs to a group.
#[inline(always)]
fn which<F: Coded>(input: usize) -> usize {
    if F::GROUP == 32 { 2 } else { input % 32 / 16 }
}

/// Whether something is added for each unit of activations.
#[inline(always)]
fn has_offset<F: Coded>() -> bool {
    F::MINIMUMS || F::ZERO.is_some_and(|zero| zero > 0)
}

/// A group of 16 weight rows: the scale, and what is added for each unit of activations, if there is such:
/// the minimum, or minus the scaled zero.
struct Group<L: Lanes> {
    scale: L::Floats,
    offset: L::Floats,
}

impl<L: Lanes> Group<L> {
    /// # Safety
    /// Scales and minimums are there as [`Coded::groups`] writes them.
    #[inline(always)]
    unsafe fn load<F: Coded>(l: L, scales: *const f32, minimums: *const f32, group: usize) -> Self {
        // SAFETY: the caller has those of the group.
        unsafe {
            let scale = l.load(array(scales.add(group * TOGETHER)));
            let offset = match F::ZERO {
                _ if F::MINIMUMS => l.load(array(minimums.add(group * TOGETHER))),
                Some(zero) => l.mul(scale, l.splat(-f32::from(zero))),
                None => scale,
            };
            Self { scale, offset }
        }
    }
}

/// Keeps the head of the first `inputs` of a unit of a row.
///
/// # Safety
/// The blocks are there, and room for the head.
#[inline(always)]
unsafe fn head<F: Coded>(row: *const u8, inputs: usize, head: *mut [u8; 16]) {
    // SAFETY: the caller has the blocks, and room for the head.
    unsafe {
        let blocks = from_raw_parts(row, inputs / F::BLOCK * F::BYTES);
        F::head(blocks, from_raw_parts_mut(head, F::HEAD - 15));
    }
}

/// `acc` and the products of codes with activations.
#[inline(always)]
fn dot<L: Lanes, F: Coded>(l: L, acc: L::Ints, codes: L::Bytes, acts: L::Bytes) -> L::Ints {
    match F::ZERO {
        Some(_) => l.dot(acc, codes, acts),
        None => l.dot_signed(acc, codes, acts),
    }
}
