//! Weights of real numbers times f32 activations.
//!
//! Lane `i` of a sum takes the inputs `k = i` modulo 16 in their order, each by one fused multiply-add; then
//! the lanes are added in a fixed tree, and the inputs after the last whole 16 follow one by one. Every type
//! decodes to exactly what `decode_row` says before it is multiplied. So a row's product has the same bits
//! whether its weights were decoded on the way (few activation rows: the speed of memory), beforehand (some),
//! or turned as well (many: `turned.rs`).
//!
//! The types that are blocks of codes under scales are in `float/`.
#![allow(unsafe_code)]
// `fetched` multiplies there.
#![cfg_attr(target_arch = "wasm32", allow(dead_code))]

pub mod blocks;
#[cfg(target_arch = "wasm32")]
pub mod fetched;
pub mod k_blocks;
pub mod points;
pub mod trits;
mod turned;

use std::marker::PhantomData;
use std::ops::Range;
use std::slice::from_raw_parts;

use half::{bf16, f16};

use super::lanes::{Kernel, Lanes, array, array_mut, part};
use super::{
    F32Rows, FLOAT_PIECE, FLOAT_ROWS, FLOAT_STRIP, Product, STRIP, Scratch, TURNED_PIECE, TURNED_ROWS, Tile,
};
use turned::Turned;

/// How a type keeps its weights.
pub trait Form {
    /// Weights of a block, which are decoded together; rows are whole blocks, but for types of single
    /// weights.
    const BLOCK: usize;
    /// Bytes of a block.
    const BYTES: usize;

    /// Decodes a block, `[BYTES]`, and hands on 16 weights at a time, in order, with the index of the first.
    fn decode<L: Lanes>(l: L, block: &[u8], each: impl FnMut(usize, L::Floats));

    /// One weight, for types whose rows may end within a block.
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

/// Rows of types that have this block may end anywhere.
const SINGLE: usize = 16;

/// From this many activation rows on, weights are decoded once for all.
const MANY: usize = 4;

/// Activation rows of a block, at most.
const MOST_FLOAT_ROWS: usize = 8;

/// Weights of a block that is multiplied while it is decoded where there are some more activation rows: those
/// of several weight rows must fit into registers.
const DIRECT: usize = 32;

/// Weight rows that are multiplied at once where there are few activation rows.
const TOGETHER: usize = 2;

/// How far ahead of the weights the cache is asked for, in bytes: for the rows that come after these, but for
/// rows so long that they would be gone from the cache by then.
fn ahead(row_bytes: usize) -> usize {
    let next = TOGETHER * row_bytes;
    if next <= 16 << 10 { next } else { 4 << 10 }
}

/// The kernel of one tile.
pub struct Float<'a, 'b, F> {
    product: &'a Product<'a>,
    acts: F32Rows<'a>,
    scratch: &'a mut Scratch,
    tile: &'a mut Tile<'b, f32>,
    form: PhantomData<F>,
}

impl<'a, 'b, F: Form> Float<'a, 'b, F> {
    /// Checks that everything fits.
    ///
    /// # Panics
    /// Where it does not.
    pub fn new(
        product: &'a Product<'a>,
        acts: F32Rows<'a>,
        scratch: &'a mut Scratch,
        tile: &'a mut Tile<'b, f32>,
    ) -> Self {
        let cols = product.cols;
        assert!(F::BLOCK == SINGLE || cols.is_multiple_of(F::BLOCK), "{cols} inputs");
        product.check(cols / F::BLOCK * F::BYTES + cols % F::BLOCK * F::BYTES / F::BLOCK, acts, tile);
        Self { product, acts, scratch, tile, form: PhantomData }
    }
}

impl<F: Form> Kernel for Float<'_, '_, F> {
    type Out = ();

    #[inline(always)]
    fn run<L: Lanes>(mut self, l: L) {
        let rows = self.tile.rows();
        if rows.len() >= turned::least::<L>() && self.product.cols.is_multiple_of(16) {
            return self.turned(l);
        }
        if rows.len() >= MANY {
            return match L::FLOAT_BLOCK {
                (3, 8) => self.many::<L, 3, 8, 4>(l),
                _ => self.many::<L, 2, 2, 1>(l),
            };
        }
        match rows.len() {
            0 => {}
            1 => self.few::<L, 1>(l, rows.start),
            2 => self.few::<L, 2>(l, rows.start),
            _ => self.few::<L, 3>(l, rows.start),
        }
    }
}

impl<F: Form> Float<'_, '_, F> {
    /// Multiplies `T` activation rows, decoding on the way.
    #[inline(always)]
    fn few<L: Lanes, const T: usize>(&mut self, l: L, first_row: usize) {
        let acts: [&[f32]; T] = std::array::from_fn(|t| self.acts.row(first_row + t));
        let ahead = ahead(self.product.row_bytes);
        for first in (0..self.tile.cols().len()).step_by(TOGETHER) {
            let product = self.product;
            let weights: [&[u8]; TOGETHER] = std::array::from_fn(|r| product.row(first + r));
            // SAFETY: blocks lie within rows, as do their inputs: `new` checked every length.
            let sums = unsafe {
                let mut acc = [[l.splat(0.0); TOGETHER]; T];
                for block in 0..self.product.cols / F::BLOCK {
                    for r in 0..TOGETHER {
                        let bytes = weights[r].as_ptr().add(block * F::BYTES);
                        for line in (0..F::BYTES).step_by(64) {
                            l.prefetch(bytes.wrapping_add(ahead + line));
                        }
                        F::decode(
                            l,
                            from_raw_parts(bytes, F::BYTES),
                            #[inline(always)]
                            |i, weights| {
                                for t in 0..T {
                                    let x = l.load(array(acts[t].as_ptr().add(block * F::BLOCK + i)));
                                    acc[t][r] = l.fma(weights, x, acc[t][r]);
                                }
                            },
                        );
                    }
                }
                let mut sums = [[0.0; TOGETHER]; T];
                for t in 0..T {
                    for r in 0..TOGETHER {
                        sums[t][r] = l.sum(acc[t][r]);
                    }
                }
                sums
            };
            for t in 0..T {
                for r in 0..TOGETHER {
                    let value = sums[t][r] + tail::<F>(weights[r], acts[t]);
                    self.finish(first + r, first_row + t, value);
                }
            }
        }
    }

    /// Multiplies all activation rows with weights that are turned, a piece of a strip at a time.
    #[inline(always)]
    fn turned<L: Lanes>(&mut self, l: L) {
        let (rows, cols, outputs) = (self.tile.rows(), self.product.cols, self.tile.cols().len());
        let mut scratch = std::mem::take(self.scratch);
        let (weights, block) = scratch.floats.split_at_mut(STRIP * TURNED_PIECE);
        // Where no sums wait, all of them.
        let n_parts = if cols <= TURNED_PIECE { 1 } else { rows.len().div_ceil(TURNED_ROWS) };
        let at_once = rows.len().div_ceil(n_parts).next_multiple_of(MOST_FLOAT_ROWS);
        for first in (0..outputs).step_by(STRIP) {
            for row in rows.clone().step_by(at_once) {
                for start in (0..cols).step_by(TURNED_PIECE) {
                    let piece = start..cols.min(start + TURNED_PIECE);
                    // SAFETY: pieces are of whole blocks, and end with the rows.
                    unsafe { turned::decode::<L, F>(l, self.product, first, piece.clone(), block, weights) };
                    L::vectorize(Turned {
                        product: self.product,
                        acts: self.acts,
                        rows: row..rows.end.min(row + at_once),
                        first,
                        piece,
                        weights,
                        sums: &mut scratch.sums,
                        tile: self.tile,
                    });
                }
            }
        }
        *self.scratch = scratch;
    }

    /// Multiplies all activation rows. A piece of a strip of weight rows is decoded, and stays in the first
    /// cache while `T` activation rows at a time (`LESS` where that is enough) pass over it, `R` weight rows
    /// at a time. Sums wait in memory for the next piece.
    #[inline(always)]
    fn many<L: Lanes, const R: usize, const T: usize, const LESS: usize>(&mut self, l: L) {
        let (rows, cols, outputs) = (self.tile.rows(), self.product.cols, self.tile.cols().len());
        let whole = cols / 16 * 16;
        let mut scratch = std::mem::take(self.scratch);
        for row in rows.clone().step_by(FLOAT_ROWS) {
            let rows = row..rows.end.min(row + FLOAT_ROWS);
            for first in (0..outputs).step_by(FLOAT_STRIP) {
                // Once also where there are fewer than 16 inputs: the sums are 0 then.
                for start in (0..whole.max(1)).step_by(FLOAT_PIECE) {
                    let piece = start..whole.min(start + FLOAT_PIECE);
                    // SAFETY: pieces are of whole blocks, and end with the rows.
                    unsafe {
                        // Of the next strip as much as is multiplied of this one: little by little, because
                        // the cache has room for few questions at a time.
                        let mut ahead = self.ahead(first, piece.clone());
                        if F::BLOCK <= DIRECT && rows.len() <= T && rows.len() > LESS {
                            let sums = &mut scratch.sums;
                            self.direct::<L, R, T>(l, rows.clone(), first, piece.clone(), ahead, sums);
                            continue;
                        }
                        let in_blocks =
                            if T >= 8 { rows.len().div_ceil(T) * FLOAT_STRIP / R * BLOCK_LINES } else { 0 };
                        self.decode(l, first, piece.clone(), ahead.without(in_blocks), &mut scratch.floats);
                        for at in rows.clone().step_by(T) {
                            let sums = &mut scratch.sums[(at - row) * FLOAT_STRIP * 16..];
                            if rows.end - at <= LESS {
                                self.blocks::<L, R, LESS>(
                                    l,
                                    at..rows.end,
                                    piece.clone(),
                                    &scratch.floats,
                                    &mut ahead,
                                    sums,
                                );
                            } else {
                                let some = at..rows.end.min(at + T);
                                self.blocks::<L, R, T>(
                                    l,
                                    some,
                                    piece.clone(),
                                    &scratch.floats,
                                    &mut ahead,
                                    sums,
                                );
                            }
                        }
                    }
                }
                for at in rows.clone().step_by(T) {
                    let (n, end) = (if rows.end - at <= LESS { LESS } else { T }, rows.end.min(at + T));
                    let sums = &scratch.sums[(at - row) * FLOAT_STRIP * 16..][..n * FLOAT_STRIP * 16];
                    let mut totals = [0.0; FLOAT_STRIP * MOST_FLOAT_ROWS];
                    for (totals, sums) in totals.chunks_mut(16).zip(sums.chunks(256)) {
                        // SAFETY: there are 16 vectors, or those that are summed one by one.
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
                        let acts = self.acts.row(row);
                        let out = &mut self.tile.row_mut(row)[first..];
                        for (i, out) in out.iter_mut().take(FLOAT_STRIP).enumerate() {
                            let sum = totals[(i / R * n + t) * R + i % R];
                            let tail =
                                if cols > whole { tail::<F>(self.product.row(first + i), acts) } else { 0.0 };
                            self.product.finish(out, first + i, sum + tail);
                        }
                    }
                }
            }
        }
        *self.scratch = scratch;
    }

    /// Multiplies up to `T` activation rows with a piece of a strip, decoding on the way.
    ///
    /// # Safety
    /// The piece is of whole blocks.
    #[inline(always)]
    unsafe fn direct<L: Lanes, const R: usize, const T: usize>(
        &self,
        l: L,
        rows: Range<usize>,
        first: usize,
        piece: Range<usize>,
        mut ahead: Ahead,
        sums: &mut [f32],
    ) {
        let last = self.tile.cols().len() - 1;
        let acts: [*const f32; T] = std::array::from_fn(|t| {
            self.acts.row((rows.start + t).min(rows.end - 1))[piece.clone()].as_ptr()
        });
        let n_blocks = piece.len() / F::BLOCK;
        for (r, sums) in (0..FLOAT_STRIP).step_by(R).zip(sums.chunks_exact_mut(16 * R * T)) {
            let weights: [&[u8]; R] = std::array::from_fn(|i| {
                let row = self.product.row((first + r + i).min(last));
                &row[piece.start / F::BLOCK * F::BYTES..][..n_blocks * F::BYTES]
            });
            let lines = ahead.lines.div_ceil((FLOAT_STRIP - r) / R);
            let ahead = Ahead { at: ahead.take(lines), lines };
            // SAFETY: blocks lie within rows, 16 floats from `at` within a block, sums within their chunk.
            unsafe {
                let mut acc = [[l.splat(0.0); R]; T];
                if piece.start > 0 {
                    for t in 0..T {
                        for i in 0..R {
                            acc[t][i] = l.load(array(sums.as_ptr().add(16 * (t * R + i))));
                        }
                    }
                }
                for block in 0..n_blocks {
                    let mut vectors = [[l.splat(0.0); DIRECT / 16]; R];
                    for i in 0..R {
                        // As many questions as there are weights: a line each 64 bytes, spread over the rows.
                        if (block * R + i) * F::BYTES % 64 < F::BYTES {
                            l.prefetch_far(ahead.at.wrapping_add((block * R + i) * F::BYTES));
                        }
                        F::decode(
                            l,
                            from_raw_parts(weights[i].as_ptr().add(block * F::BYTES), F::BYTES),
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

    /// What to ask the cache for while a piece is multiplied: as much of the next strip.
    #[inline(always)]
    fn ahead(&self, first: usize, piece: Range<usize>) -> Ahead {
        let bytes_of = |inputs: usize| inputs / F::BLOCK * F::BYTES * FLOAT_STRIP;
        let at = (first + FLOAT_STRIP) * self.product.row_bytes + bytes_of(piece.start);
        Ahead {
            at: self.product.weights.as_ptr().wrapping_add(at),
            lines: bytes_of(piece.len()).div_ceil(64),
        }
    }

    /// Decodes a piece of a strip of weight rows, and asks the cache for `ahead`.
    ///
    /// # Safety
    /// The piece is of whole blocks, within the rows, and of at most [`FLOAT_PIECE`] inputs.
    #[inline(always)]
    unsafe fn decode<L: Lanes>(
        &self,
        l: L,
        first: usize,
        piece: Range<usize>,
        mut ahead: Ahead,
        floats: &mut [f32],
    ) {
        let last = FLOAT_STRIP.min(self.tile.cols().len() - first) - 1;
        for (r, floats) in floats.chunks_exact_mut(FLOAT_PIECE).take(FLOAT_STRIP).enumerate() {
            // Rows beyond the last one repeat it; what comes out of them is not looked at.
            let row = self.product.row(first + r.min(last));
            for block in 0..piece.len() / F::BLOCK {
                // SAFETY: blocks lie within rows, and 16 floats from `i` within a block.
                unsafe {
                    if block.is_multiple_of((64 / F::BYTES).max(1)) {
                        for _ in 0..F::BYTES.div_ceil(64).min(ahead.lines) {
                            l.prefetch_far(ahead.take(1));
                        }
                    }
                    let at = (piece.start / F::BLOCK + block) * F::BYTES;
                    F::decode(
                        l,
                        from_raw_parts(row.as_ptr().add(at), F::BYTES),
                        #[inline(always)]
                        |i, weights| {
                            l.store(array_mut(floats.as_mut_ptr().add(block * F::BLOCK + i)), weights)
                        },
                    );
                }
            }
        }
    }

    /// Multiplies up to `T` activation rows with a decoded piece.
    ///
    /// # Safety
    /// The piece is of a multiple of 16 inputs.
    #[inline(always)]
    unsafe fn blocks<L: Lanes, const R: usize, const T: usize>(
        &self,
        l: L,
        rows: Range<usize>,
        piece: Range<usize>,
        decoded: &[f32],
        ahead: &mut Ahead,
        sums: &mut [f32],
    ) {
        let acts: [&[f32]; T] =
            std::array::from_fn(|t| &self.acts.row((rows.start + t).min(rows.end - 1))[piece.clone()]);
        for (r, sums) in (0..FLOAT_STRIP).step_by(R).zip(sums.chunks_exact_mut(16 * R * T)) {
            let weights: [&[f32]; R] =
                std::array::from_fn(|i| &decoded[(r + i) * FLOAT_PIECE..][..piece.len()]);
            let ahead = ahead.take(BLOCK_LINES);
            // SAFETY: all rows are as long as the piece, and the chunk has the sums.
            unsafe { block::<L, R, T>(l, weights, acts, piece.start > 0, ahead, sums.as_mut_ptr()) };
        }
    }

    /// Writes one output, where there is such a one.
    #[inline(always)]
    fn finish(&mut self, output: usize, row: usize, value: f32) {
        if let Some(out) = self.tile.row_mut(row).get_mut(output) {
            self.product.finish(out, output, value);
        }
    }
}

/// Lines that the cache is asked for while a block is multiplied, where it is a whole piece: one every 16
/// inputs.
const BLOCK_LINES: usize = FLOAT_PIECE / 16;

/// Neighbouring cache lines that will be wanted.
#[derive(Clone, Copy)]
struct Ahead {
    at: *const u8,
    lines: usize,
}

impl Ahead {
    /// The first of up to `n` lines, which are taken off.
    #[inline(always)]
    fn take(&mut self, n: usize) -> *const u8 {
        let at = self.at;
        let n = n.min(self.lines);
        *self = Self { at: at.wrapping_add(64 * n), lines: self.lines - n };
        at
    }

    /// The same without the first `n` lines.
    #[inline(always)]
    fn without(mut self, n: usize) -> Self {
        self.take(n);
        self
    }
}

/// Products of `R` weight rows and `T` activation rows, in lanes: `sums` is `[T, R, 16]`, and gets more where
/// `go_on` says so.
///
/// # Safety
/// All rows have the same multiple of 16 elements, and `sums` is there.
#[inline(always)]
unsafe fn block<L: Lanes, const R: usize, const T: usize>(
    l: L,
    weights: [&[f32]; R],
    acts: [&[f32]; T],
    go_on: bool,
    ahead: *const u8,
    sums: *mut f32,
) {
    // SAFETY: `k` is 16 elements before the end of a row, or more; the caller has the sums.
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
            // In larger blocks there is room for it.
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

/// Products of the inputs after the last whole 16.
#[inline(always)]
fn tail<F: Form>(weights: &[u8], acts: &[f32]) -> f32 {
    let (whole, bytes) = (acts.len() / 16 * 16, F::BYTES / F::BLOCK);
    let mut sum = 0.0;
    for (k, x) in acts.iter().enumerate().skip(whole) {
        sum += x * F::one(&weights[k * bytes..]);
    }
    sum
}
