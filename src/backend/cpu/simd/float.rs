//! Weights of real numbers times f32 activations.
//!
//! Lane `i` of a sum takes the inputs `k = i` modulo 16 in their order, each by one fused multiply-add; then the
//! lanes are added in a fixed tree, and the inputs after the last whole 16 follow one by one. Every type decodes
//! to exactly what `decode_row` says before it is multiplied. So a row's product has the same bits whether its
//! weights were decoded on the way (few activation rows: the speed of memory) or beforehand (many).
#![allow(unsafe_code)]

use std::marker::PhantomData;

use half::{bf16, f16};

use super::lanes::{Kernel, Lanes};
use super::{DECODED_ROWS, F32Rows, Product, Scratch, Tile};

/// How a type keeps its weights.
pub trait Form {
    /// Weights that are decoded together. Few enough that a core has several rows' chains of multiply-adds in
    /// flight.
    const PART: usize;
    /// Weights of a block, a multiple of `PART`; rows are whole blocks, but for types of single weights.
    const BLOCK: usize = Self::PART;
    /// Bytes of a block.
    const BYTES: usize;

    /// Decodes part `part` of a row and hands on 16 weights at a time, in order, with the index of the first.
    ///
    /// # Safety
    /// As [`Lanes`]; the row behind the pointer has such a part.
    unsafe fn decode<L: Lanes>(row: *const u8, part: usize, each: impl FnMut(usize, L::Floats));

    /// One weight, for types whose rows may end within a block.
    fn one(bytes: &[u8]) -> f32;
}

/// Little-endian f32.
pub struct F32;
/// Little-endian f16.
pub struct F16;
/// The upper half of a little-endian f32.
pub struct Bf16;
/// f16 scale, 32 i8.
pub struct Q8_0;
/// 256 weights of 6 bits in three streams, with 16 i8 scales and one of f16.
pub struct Q6K;

impl Form for F32 {
    const PART: usize = 16;
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn decode<L: Lanes>(row: *const u8, part: usize, mut each: impl FnMut(usize, L::Floats)) {
        // SAFETY: as for this function.
        each(0, unsafe { L::load(row.add(part * Self::BYTES).cast()) });
    }

    fn one(bytes: &[u8]) -> f32 {
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }
}

impl Form for F16 {
    const PART: usize = 16;
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn decode<L: Lanes>(row: *const u8, part: usize, mut each: impl FnMut(usize, L::Floats)) {
        // SAFETY: as for this function.
        each(0, unsafe { L::load_f16(row.add(part * Self::BYTES)) });
    }

    fn one(bytes: &[u8]) -> f32 {
        f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}

impl Form for Bf16 {
    const PART: usize = 16;
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn decode<L: Lanes>(row: *const u8, part: usize, mut each: impl FnMut(usize, L::Floats)) {
        // SAFETY: as for this function.
        each(0, unsafe { L::load_bf16(row.add(part * Self::BYTES)) });
    }

    fn one(bytes: &[u8]) -> f32 {
        bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
    }
}

impl Form for Q8_0 {
    const PART: usize = 32;
    const BYTES: usize = 34;

    #[inline(always)]
    unsafe fn decode<L: Lanes>(row: *const u8, part: usize, mut each: impl FnMut(usize, L::Floats)) {
        // SAFETY: as for this function.
        unsafe {
            let block = row.add(part * Self::BYTES);
            let scale = L::splat(L::f16_to_f32(block.cast::<u16>().read_unaligned()));
            each(0, L::mul(scale, L::load_i8(block.add(2).cast())));
            each(16, L::mul(scale, L::load_i8(block.add(18).cast())));
        }
    }

    fn one(_: &[u8]) -> f32 {
        unreachable!("rows are whole blocks")
    }
}

impl Form for Q6K {
    const PART: usize = 128;
    const BLOCK: usize = 256;
    const BYTES: usize = 210;

    #[inline(always)]
    unsafe fn decode<L: Lanes>(row: *const u8, part: usize, mut each: impl FnMut(usize, L::Floats)) {
        // SAFETY: as for this function.
        unsafe {
            let (block, half) = (row.add(part / 2 * Self::BYTES), part % 2);
            let scale = L::splat(L::f16_to_f32(block.add(208).cast::<u16>().read_unaligned()));
            let mut scales = [0.0; 16];
            L::store(scales.as_mut_ptr(), L::mul(scale, L::load_i8(block.add(192).cast())));
            let mut values = [0; 128];
            L::unpack_q6(block.add(64 * half), block.add(128 + 32 * half), values.as_mut_ptr());
            for i in 0..8 {
                let scale = L::splat(scales[8 * half + i]);
                each(16 * i, L::mul(scale, L::load_i8(values.as_ptr().add(16 * i))));
            }
        }
    }

    fn one(_: &[u8]) -> f32 {
        unreachable!("rows are whole blocks")
    }
}

/// Rows of types that have this block may end anywhere.
const SINGLE: usize = 16;

/// From this many activation rows on, weights are decoded once for all.
const MANY: usize = 4;

/// Weight rows that are multiplied at once where there are few activation rows.
const TOGETHER: usize = 4;

/// How far ahead of the weights the cache is asked for, in bytes.
const AHEAD: usize = 1024;

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
        let (cols, outputs) = (product.cols, tile.cols().len());
        assert_eq!(cols, acts.cols, "inputs of the weight and of the layer");
        assert!(F::BLOCK == SINGLE || cols.is_multiple_of(F::BLOCK), "{cols} inputs");
        assert_eq!(product.row_bytes, cols / F::BLOCK * F::BYTES + cols % F::BLOCK * F::BYTES / F::BLOCK);
        assert_eq!(product.weights.len(), outputs * product.row_bytes, "bytes of {outputs} rows");
        assert!(product.bias.is_none_or(|bias| bias.len() == outputs), "a bias for {outputs} outputs");
        assert!(tile.rows().end * cols <= acts.x.len());
        Self { product, acts, scratch, tile, form: PhantomData }
    }
}

impl<F: Form> Kernel for Float<'_, '_, F> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(mut self) {
        let rows = self.tile.rows();
        // SAFETY: as for this function; `new` checked every length.
        unsafe {
            if rows.len() >= MANY {
                return match L::FLOAT_BLOCK {
                    (4, 6) => self.many::<L, 4, 6>(),
                    _ => self.many::<L, 2, 2>(),
                };
            }
            match rows.len() {
                0 => {}
                1 => self.few::<L, 1>(rows.start),
                2 => self.few::<L, 2>(rows.start),
                _ => self.few::<L, 3>(rows.start),
            }
        }
    }
}

impl<F: Form> Float<'_, '_, F> {
    /// Multiplies `T` activation rows, decoding on the way.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn few<L: Lanes, const T: usize>(&mut self, first_row: usize) {
        let acts: [&[f32]; T] = std::array::from_fn(|t| self.acts.row(first_row + t));
        for first in (0..self.tile.cols().len()).step_by(TOGETHER) {
            let product = self.product;
            let weights: [&[u8]; TOGETHER] = std::array::from_fn(|r| product.row(first + r));
            // SAFETY: as for this function; parts lie within rows, as do their inputs.
            let sums = unsafe {
                let mut acc = [[L::splat(0.0); TOGETHER]; T];
                for part in 0..self.product.cols / F::PART {
                    let bytes = F::BYTES * F::PART / F::BLOCK;
                    for r in 0..TOGETHER {
                        for line in (0..bytes).step_by(64) {
                            L::prefetch(weights[r].as_ptr().wrapping_add(part * bytes + line + AHEAD));
                        }
                        F::decode::<L>(
                            weights[r].as_ptr(),
                            part,
                            #[inline(always)]
                            |i, weights| {
                                for t in 0..T {
                                    let x = L::load(acts[t].as_ptr().add(part * F::PART + i));
                                    acc[t][r] = L::fma(weights, x, acc[t][r]);
                                }
                            },
                        );
                    }
                }
                sums_of::<L, TOGETHER, T>(acc)
            };
            for t in 0..T {
                for r in 0..TOGETHER {
                    let value = sums[t][r] + tail::<F>(weights[r], acts[t]);
                    self.finish(first + r, first_row + t, value);
                }
            }
        }
    }

    /// Multiplies all activation rows, in blocks of `R` weight rows and `T` activation rows.
    ///
    /// # Safety
    /// As [`Kernel::run`].
    #[inline(always)]
    unsafe fn many<L: Lanes, const R: usize, const T: usize>(&mut self) {
        let (rows, cols) = (self.tile.rows(), self.product.cols);
        let whole = cols / 16 * 16;
        for first in (0..self.tile.cols().len()).step_by(DECODED_ROWS) {
            let mut floats = std::mem::take(&mut self.scratch.floats);
            for (r, floats) in floats.chunks_exact_mut(cols).take(DECODED_ROWS).enumerate() {
                let weights = self.product.row(first + r);
                for (part, floats) in floats[..whole].chunks_exact_mut(F::PART).enumerate() {
                    // SAFETY: as for this function; parts lie within rows, and 16 floats from `i` within a part.
                    unsafe {
                        F::decode::<L>(
                            weights.as_ptr(),
                            part,
                            #[inline(always)]
                            |i, weights| {
                                L::store(floats.as_mut_ptr().add(i), weights);
                            },
                        );
                    }
                }
            }
            for row in rows.clone().step_by(T) {
                let acts: [&[f32]; T] = std::array::from_fn(|t| self.acts.row((row + t).min(rows.end - 1)));
                for some in (0..DECODED_ROWS).step_by(R) {
                    let decoded: [&[f32]; R] = std::array::from_fn(|r| &floats[(some + r) * cols..][..whole]);
                    // SAFETY: as for this function; `whole` is a multiple of 16.
                    let sums = unsafe { block::<L, R, T>(decoded, acts, whole) };
                    for t in 0..T.min(rows.end - row) {
                        for r in 0..R {
                            let output = first + some + r;
                            let value = sums[t][r] + tail::<F>(self.product.row(output), acts[t]);
                            self.finish(output, row + t, value);
                        }
                    }
                }
            }
            self.scratch.floats = floats;
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

/// Sums over the first `len` inputs, a multiple of 16.
///
/// # Safety
/// As [`Lanes`]; every row has `len` elements.
#[inline(always)]
unsafe fn block<L: Lanes, const R: usize, const T: usize>(
    weights: [&[f32]; R],
    acts: [&[f32]; T],
    len: usize,
) -> [[f32; R]; T] {
    // SAFETY: as for this function.
    unsafe {
        let mut acc = [[L::splat(0.0); R]; T];
        for k in (0..len).step_by(16) {
            let mut vectors = [L::splat(0.0); R];
            for r in 0..R {
                vectors[r] = L::load(weights[r].as_ptr().add(k));
            }
            for t in 0..T {
                let x = L::load(acts[t].as_ptr().add(k));
                for r in 0..R {
                    acc[t][r] = L::fma(vectors[r], x, acc[t][r]);
                }
            }
        }
        sums_of::<L, R, T>(acc)
    }
}

/// # Safety
/// As [`Lanes`].
#[inline(always)]
unsafe fn sums_of<L: Lanes, const R: usize, const T: usize>(acc: [[L::Floats; R]; T]) -> [[f32; R]; T] {
    let mut sums = [[0.0; R]; T];
    for t in 0..T {
        for r in 0..R {
            // SAFETY: as for this function.
            sums[t][r] = unsafe { L::sum(acc[t][r]) };
        }
    }
    sums
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
