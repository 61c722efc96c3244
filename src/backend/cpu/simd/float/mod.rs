//! Products of weights that are multiplied as floats and f32 activations.
//!
//! Lane `i` of a sum adds the inputs `k = i` modulo 16 in order, each with one fused multiply-add; then the
//! lanes are added in a fixed tree, and the inputs after the last whole 16 follow one by one. Every type
//! decodes to exactly the values of `decode_row` before it is multiplied. So a row's product has the same
//! bits whether its weights are decoded on the way (few activation rows: at the speed of memory), beforehand
//! (some rows), or beforehand and transposed (many rows: `transposed.rs`).
//!
//! Only the decoding is compiled per type ([`Type`]). Products of decoded weights are compiled once per
//! instruction set, and the loops over tiles and pieces once.
//!
//! Types with blocks of codes and scales are in `blocks.rs` and `k_blocks.rs`, codebooks in `points.rs`,
//! ternary types in `trits.rs`.
#![allow(unsafe_code)]
// WebAssembly uses `fetched` instead.
#![cfg_attr(target_arch = "wasm32", allow(dead_code))]

pub mod blocks;
#[cfg(target_arch = "wasm32")]
pub mod fetched;
mod few;
pub mod k_blocks;
mod many;
pub mod points;
mod transposed;
pub mod trits;

use std::marker::PhantomData;
use std::ops::Range;
use std::slice::from_raw_parts;

use half::{bf16, f16};

use super::lanes::{Kernel, Lanes, array_mut, part};
use super::{
    F32Rows, FLOAT_PIECE, FLOAT_ROWS, FLOAT_STRIP, MAX_BLOCK, Product, STRIP, Scratch, TRANSPOSED_PIECE,
    TRANSPOSED_ROWS, Tile,
};
#[cfg(target_arch = "wasm32")]
use many::block;

/// Storage format of a type's weights.
pub trait Form {
    /// Weights of a block, which are decoded together. Rows are whole blocks, except for unblocked types.
    const BLOCK: usize;
    /// Bytes of a block.
    const BYTES: usize;

    /// Decodes a block, `[BYTES]`, and passes 16 weights at a time to `each`, with the index of the first.
    fn decode<L: Lanes>(l: L, block: &[u8], each: impl FnMut(usize, L::Floats));

    /// Decodes one weight, for types whose rows may end within a block.
    fn one(_: &[u8]) -> f32 {
        unreachable!("rows are whole blocks")
    }
}

/// Little-endian f32.
pub struct F32;
/// Little-endian f16.
pub struct F16;
/// The upper half of a little-endian f32.
pub struct Bf16;
/// f16 scale, 32 i8.
pub struct Q8_0;

impl Form for F32 {
    const BLOCK: usize = 16;
    const BYTES: usize = 64;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        each(0, l.load_f32(part(block, 0)));
    }

    fn one(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl Form for F16 {
    const BLOCK: usize = 16;
    const BYTES: usize = 32;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        each(0, l.load_f16(part(block, 0)));
    }

    fn one(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}

impl Form for Bf16 {
    const BLOCK: usize = 16;
    const BYTES: usize = 32;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        each(0, l.load_bf16(part(block, 0)));
    }

    fn one(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}

impl Form for Q8_0 {
    const BLOCK: usize = 32;
    const BYTES: usize = 34;

    #[inline(always)]
    fn decode<L: Lanes>(l: L, block: &[u8], mut each: impl FnMut(usize, L::Floats)) {
        let scale = l.splat(l.f16_to_f32(u16::from_le_bytes(*part(block, 0))));
        let codes: &[i8; 32] = bytemuck::cast_ref(part::<32>(block, 2));
        each(0, l.mul(scale, l.load_i8(codes.first_chunk().expect("32 codes"))));
        each(16, l.mul(scale, l.load_i8(codes.last_chunk().expect("32 codes"))));
    }
}

/// Block size of types that store single weights: their rows may end anywhere.
const SINGLE: usize = 16;

/// Number of activation rows from which weights are decoded once for all rows.
const MANY: usize = 4;

/// A type over one instruction set: its sizes, and the code that is compiled per type.
pub struct Type {
    /// [`Form::BLOCK`] and [`Form::BYTES`].
    block: usize,
    bytes: usize,
    /// For one, two and three activation rows.
    few: [few::FewFn; MANY - 1],
    decode: DecodeFn,
    /// For types with short blocks, if the set has enough registers.
    direct: Option<many::DirectFn>,
    tail: TailFn,
    set: &'static Set,
}

/// Code that all types share over one instruction set.
struct Set {
    /// Number of activation rows from which weights are transposed.
    transposed_from: usize,
    transpose: transposed::TransposeFn,
    multiply_transposed: transposed::MultiplyFn,
    /// Activation rows of a block, and of the smaller block.
    block: (usize, usize),
    /// Cache lines prefetched during the products of a strip with a block of activation rows.
    lines_in_blocks: usize,
    multiply: many::MultiplyFn,
    finish: many::FinishFn,
}

impl Set {
    const fn of<L: Lanes>() -> Self {
        Self {
            transposed_from: transposed::least::<L>(),
            transpose: transposed::transpose::<L>,
            multiply_transposed: transposed::multiply::<L>,
            block: many::rows::<L>(),
            lines_in_blocks: many::lines::<L>(),
            multiply: many::multiply::<L>,
            finish: many::finish::<L>,
        }
    }
}

impl Type {
    /// The type with the format `F`.
    pub const fn of<L: Lanes, F: Form>() -> Self {
        const { assert!(MAX_BLOCK.is_multiple_of(F::BLOCK) && FLOAT_PIECE.is_multiple_of(F::BLOCK)) };
        Self {
            block: F::BLOCK,
            bytes: F::BYTES,
            few: [few::few::<L, F, 1>, few::few::<L, F, 2>, few::few::<L, F, 3>],
            decode: decode::<L, F>,
            direct: many::direct::<L, F>(),
            tail: tail::<F>,
            set: const { &Set::of::<L>() },
        }
    }

    /// Multiplies a tile.
    ///
    /// # Panics
    /// If the arguments do not match.
    pub fn multiply(
        &self,
        product: &Product<'_>,
        acts: F32Rows<'_>,
        scratch: &mut Scratch,
        tile: &mut Tile<'_, f32>,
    ) {
        let (rows, cols) = (tile.rows(), product.cols);
        assert!(self.block == SINGLE || cols.is_multiple_of(self.block), "{cols} inputs");
        product.check(self.bytes_of(cols) + cols % self.block * self.bytes / self.block, acts, tile);
        match rows.len() {
            0 => {}
            n if n < MANY => (self.few[n - 1])(product, acts, rows.start, tile),
            n if n >= self.set.transposed_from && cols.is_multiple_of(16) => {
                self.transposed(product, acts, scratch, tile);
            }
            _ => self.many(product, acts, scratch, tile),
        }
    }

    /// Bytes of the whole blocks of `inputs` weights.
    fn bytes_of(&self, inputs: usize) -> usize {
        inputs / self.block * self.bytes
    }

    /// Multiplies all activation rows with transposed weights, one piece of a strip at a time.
    fn transposed(
        &self,
        product: &Product<'_>,
        acts: F32Rows<'_>,
        scratch: &mut Scratch,
        tile: &mut Tile<'_, f32>,
    ) {
        let (rows, cols, outputs) = (tile.rows(), product.cols, tile.cols().len());
        let (weights, decoded) = scratch.floats.split_at_mut(STRIP * TRANSPOSED_PIECE);
        let decoded = &mut decoded[..16 * MAX_BLOCK];
        // All rows at once, if no sums have to be kept.
        let n_parts = if cols <= TRANSPOSED_PIECE { 1 } else { rows.len().div_ceil(TRANSPOSED_ROWS) };
        let at_once = rows.len().div_ceil(n_parts).next_multiple_of(many::MAX_ROWS);
        for first in (0..outputs).step_by(STRIP) {
            for row in rows.clone().step_by(at_once) {
                for start in (0..cols).step_by(TRANSPOSED_PIECE) {
                    let piece = start..cols.min(start + TRANSPOSED_PIECE);
                    let mut ahead = self.ahead(product, first, STRIP, &piece);
                    for col in (0..STRIP).step_by(16) {
                        let weights_of = product.rows::<16>(first + col);
                        for at in piece.clone().step_by(MAX_BLOCK) {
                            let (n, bytes) = (MAX_BLOCK.min(piece.end - at), self.bytes_of(at));
                            let rows = weights_of.map(|row| row.wrapping_add(bytes));
                            // SAFETY: the blocks are within the rows, and `decoded` has enough space.
                            unsafe {
                                let to = decoded.as_mut_ptr();
                                (self.decode)(&rows, n / self.block, &mut ahead, MAX_BLOCK, to);
                            }
                            let step = (at - start) / 16;
                            (self.set.transpose)(decoded, n / 16, weights, piece.len() / 16, step, col);
                        }
                    }
                    (self.set.multiply_transposed)(transposed::MultiplyTransposed {
                        product,
                        acts,
                        rows: row..rows.end.min(row + at_once),
                        first,
                        piece,
                        weights,
                        sums: &mut scratch.sums,
                        tile,
                    });
                }
            }
        }
    }

    /// Multiplies all activation rows. A piece of a strip of weight rows is decoded and stays in L1 while
    /// some activation rows at a time are multiplied with it. Sums are kept in memory for the next piece.
    fn many(
        &self,
        product: &Product<'_>,
        acts: F32Rows<'_>,
        scratch: &mut Scratch,
        tile: &mut Tile<'_, f32>,
    ) {
        let (rows, cols, outputs) = (tile.rows(), product.cols, tile.cols().len());
        let ((most, less), whole) = (self.set.block, cols / 16 * 16);
        let (decoded, sums) = (&mut scratch.floats[..FLOAT_STRIP * FLOAT_PIECE], &mut *scratch.sums);
        for row in rows.clone().step_by(FLOAT_ROWS) {
            let rows = row..rows.end.min(row + FLOAT_ROWS);
            for first in (0..outputs).step_by(FLOAT_STRIP) {
                let weights = product.rows::<FLOAT_STRIP>(first);
                // Runs once even if there are fewer than 16 inputs: the sums are 0 then.
                for start in (0..whole.max(1)).step_by(FLOAT_PIECE) {
                    let piece = start..whole.min(start + FLOAT_PIECE);
                    let at = self.bytes_of(start);
                    let weights = weights.map(|row| row.wrapping_add(at));
                    let n_blocks = piece.len() / self.block;
                    // Prefetches as much of the next strip as is multiplied of this one, little by little,
                    // because the cache can handle few requests at a time.
                    let ahead = self.ahead(product, first, FLOAT_STRIP, &piece);
                    // SAFETY: pieces are whole blocks within the rows, and there is space for their weights.
                    unsafe {
                        match self.direct {
                            Some(direct) if rows.len() > less && rows.len() <= most => {
                                direct(&weights, n_blocks, acts, rows.clone(), piece, ahead, sums);
                            }
                            _ => {
                                let in_blocks = rows.len().div_ceil(most) * self.set.lines_in_blocks;
                                let mut rest = ahead.without(in_blocks);
                                let to = decoded.as_mut_ptr();
                                (self.decode)(&weights, n_blocks, &mut rest, FLOAT_PIECE, to);
                                (self.set.multiply)(decoded, acts, rows.clone(), piece, ahead, sums);
                            }
                        }
                    }
                }
                let tail = (cols > whole).then_some(self.tail);
                (self.set.finish)(product, acts, tile, rows.clone(), first, sums, tail);
            }
        }
    }

    /// Cache lines to prefetch while a piece of `strip` rows is multiplied: as much of the next strip.
    fn ahead(&self, product: &Product<'_>, first: usize, strip: usize, piece: &Range<usize>) -> Ahead {
        let at = (first + strip) * product.row_bytes + self.bytes_of(piece.start) * strip;
        let lines = (self.bytes_of(piece.len()) * strip).div_ceil(64);
        Ahead { at: product.weights.as_ptr().wrapping_add(at), lines }
    }
}

/// A range of cache lines to prefetch.
#[derive(Clone, Copy)]
struct Ahead {
    at: *const u8,
    lines: usize,
}

impl Ahead {
    /// Removes up to `n` lines from the front, and returns the address of the first.
    #[inline(always)]
    fn take(&mut self, n: usize) -> *const u8 {
        let at = self.at;
        let n = n.min(self.lines);
        *self = Self { at: at.wrapping_add(64 * n), lines: self.lines - n };
        at
    }

    /// The range without its first `n` lines.
    #[inline(always)]
    fn without(mut self, n: usize) -> Self {
        self.take(n);
        self
    }
}

/// Function that decodes blocks of some rows: see [`Decode`].
type DecodeFn =
    unsafe fn(rows: &[*const u8], n_blocks: usize, ahead: &mut Ahead, stride: usize, floats: *mut f32);

/// The [`DecodeFn`] of a format.
///
/// # Safety
/// The rows have `n_blocks` blocks, and `floats` has space for their weights.
unsafe fn decode<L: Lanes, F: Form>(
    rows: &[*const u8],
    n_blocks: usize,
    ahead: &mut Ahead,
    stride: usize,
    floats: *mut f32,
) {
    L::vectorize(Decode::<F> { rows, n_blocks, ahead, stride, floats, form: PhantomData });
}

/// Decodes the first `n_blocks` blocks of some rows, `stride` floats apart, and prefetches as many lines.
struct Decode<'a, F> {
    rows: &'a [*const u8],
    n_blocks: usize,
    ahead: &'a mut Ahead,
    stride: usize,
    floats: *mut f32,
    form: PhantomData<F>,
}

impl<F: Form> Kernel for Decode<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let mut ahead = *self.ahead;
        for (r, row) in self.rows.iter().enumerate() {
            for block in 0..self.n_blocks {
                if block.is_multiple_of((64 / F::BYTES).max(1)) {
                    for _ in 0..F::BYTES.div_ceil(64).min(ahead.lines) {
                        l.prefetch_far(ahead.take(1));
                    }
                }
                // SAFETY: the caller of `decode` ensures the blocks and the space.
                unsafe {
                    let floats = self.floats.add(r * self.stride + block * F::BLOCK);
                    F::decode(
                        l,
                        from_raw_parts(row.add(block * F::BYTES), F::BYTES),
                        #[inline(always)]
                        |i, weights| l.store(array_mut(floats.add(i)), weights),
                    );
                }
            }
        }
        *self.ahead = ahead;
    }
}

/// Product of a row's inputs after the last whole 16 with their weights.
type TailFn = fn(weights: &[u8], acts: &[f32]) -> f32;

/// Sums the products of the inputs after the last whole 16.
#[inline(always)]
fn tail<F: Form>(weights: &[u8], acts: &[f32]) -> f32 {
    let (whole, bytes) = (acts.len() / 16 * 16, F::BYTES / F::BLOCK);
    let mut sum = 0.0;
    for (k, x) in acts.iter().enumerate().skip(whole) {
        sum += x * F::one(&weights[k * bytes..]);
    }
    sum
}
